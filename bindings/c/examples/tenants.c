/* Two tenants share a pool. One reads a thousand pages once, the other keeps its forty in use.
 *
 *     cc tenants.c $(pkg-config --cflags --libs umemcg) -o tenants && ./tenants
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <umemcg.h>

static void must(umemcg_code code) {
    umemcg_error error = {.size = sizeof error};
    if (code == UMEMCG_OK)
        return;
    umemcg_last_error(&error);
    fprintf(stderr, "%s: %s (group `%s`, wanted %llu, limit %llu, free %llu)\n", umemcg_code_name(code), error.message,
            error.path, (unsigned long long)error.wanted_bytes, (unsigned long long)error.limit_bytes,
            (unsigned long long)error.free_bytes);
    exit(1);
}

/* Gets a page, or loads and stores it. Returns whether it was there. */
static int page(umemcg_cache cache, umemcg_group tenant, int owner, int number) {
    int key[2] = {owner, number};
    char bytes[8192];
    size_t len;
    if (umemcg_cache_get(cache, key, sizeof key, bytes, sizeof bytes, &len) == UMEMCG_OK)
        return 1;
    memset(bytes, number, sizeof bytes);
    must(umemcg_cache_insert(cache, tenant, key, sizeof key, bytes, sizeof bytes));
    return 0;
}

int main(void) {
    umemcg_engine_config config = {.size = sizeof config, .pool_bytes = 16 << 20};
    umemcg_cache_config cache_config = {.size = sizeof cache_config, .name = "pages"};
    umemcg_engine engine;
    umemcg_group scanning, quiet;
    umemcg_cache cache;
    umemcg_owner buffers;
    uint64_t usage;
    int round, number, hits = 0;

    must(umemcg_engine_new(&config, &engine));
    must(umemcg_group_open(engine, "/scanning", UMEMCG_GROUP_CREATE, &scanning));
    must(umemcg_group_open(engine, "/quiet", UMEMCG_GROUP_CREATE, &quiet));
    must(umemcg_group_set(scanning, "memory.max", 2 << 20));
    must(umemcg_group_set(quiet, "memory.max", 2 << 20));
    must(umemcg_cache_new(engine, &cache_config, &cache));

    for (round = 0; round < 25; round++) {
        for (number = 0; number < 40; number++) {
            page(cache, scanning, 1, round * 40 + number);
            hits += page(cache, quiet, 2, number);
        }
    }
    must(umemcg_group_get(scanning, "memory.current", &usage));
    printf("quiet: %d of 1000 look-ups hit; scanning holds %llu KiB of its 2048\n", hits,
           (unsigned long long)usage / 1024);

    /* Memory of the program's own is charged, too, and pages give way to it. */
    must(umemcg_charge(scanning, 1 << 20, 0, &buffers));
    if (umemcg_charge(scanning, 4 << 20, 0, &buffers) == UMEMCG_REFUSED)
        printf("4 MiB more do not fit\n");

    must(umemcg_engine_free(engine)); /* with everything in it */
    return hits == 960 && usage <= 2 << 20 ? 0 : 1;
}
