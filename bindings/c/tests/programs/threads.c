/* Threads use, close and free the same objects at the same time: codes, and exact accounts. */
#include "check.h"

#include <pthread.h>

#define NR_THREADS 4
#define NR_ROUNDS 4000

struct shared {
    umemcg_engine engine;
    umemcg_group group;
    umemcg_cache cache;
    umemcg_owner common;
};

static unsigned next(unsigned *seed) {
    *seed = *seed * 1103515245u + 12345u;
    return *seed >> 16;
}

/* Every code that a call may return while another thread frees its objects. */
static void expect(umemcg_code code) {
    CHECK(code == UMEMCG_OK || code == UMEMCG_BAD_HANDLE || code == UMEMCG_REFUSED || code == UMEMCG_NOT_FOUND ||
          code == UMEMCG_NOT_HELD || code == UMEMCG_ENDING || code == UMEMCG_HAS_CHILDREN || code == UMEMCG_GONE);
}

static void *use(void *user) {
    struct shared *shared = user;
    unsigned seed = (unsigned)(size_t)&seed;
    int at;
    for (at = 0; at < NR_ROUNDS; at++) {
        umemcg_owner owner;
        umemcg_value value;
        umemcg_group group;
        const void *data;
        size_t len;
        uint64_t key = next(&seed) % 64;
        switch (next(&seed) % 5) {
        case 0:
            if (umemcg_charge(shared->group, 1 + key * 100, 0, &owner) == UMEMCG_OK)
                expect(umemcg_uncharge(owner, 1 + key * 100));
            break;
        case 1:
            expect(umemcg_cache_insert(shared->cache, shared->group, &key, sizeof key, &key, sizeof key));
            break;
        case 2:
            if (umemcg_cache_hold(shared->cache, &key, sizeof key, &value, &data, &len) == UMEMCG_OK) {
                CHECK(len == sizeof key && memcmp(data, &key, len) == 0);
                expect(umemcg_value_free(value));
            }
            break;
        case 3:
            if (umemcg_group_open(shared->engine, "/a/short", UMEMCG_GROUP_CREATE, &group) == UMEMCG_OK) {
                if (umemcg_charge(group, 4096, 0, &owner) == UMEMCG_OK) {
                    expect(umemcg_group_remove(group));
                    expect(umemcg_uncharge(owner, 4096));
                }
                expect(umemcg_group_close(group));
            }
            break;
        default:
            expect(umemcg_cache_remove(shared->cache, &key, sizeof key));
        }
    }
    return NULL;
}

static void run(int frees_while_used) {
    struct shared shared = {0};
    umemcg_cache_config config = {0};
    pthread_t threads[NR_THREADS];
    int at;
    shared.engine = new_engine(16 * MIB);
    shared.group = new_group(shared.engine, "/a", MIB);
    config.size = sizeof config;
    config.name = "c";
    OK(umemcg_cache_new(shared.engine, &config, &shared.cache));
    for (at = 0; at < NR_THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, use, &shared) == 0);
    if (frees_while_used)
        OK(umemcg_engine_free(shared.engine));
    for (at = 0; at < NR_THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    if (!frees_while_used) {
        OK(umemcg_cache_free(shared.cache));
        OK(umemcg_group_set(shared.group, "memory.force_empty", 0));
        /* Only the state of a remaining group below. */
        CHECK(get(shared.group, "memory.current") <= 4096);
        OK(umemcg_engine_free(shared.engine));
    }
}

int main(void) {
    int at;
    run(0);
    for (at = 0; at < 5; at++)
        run(1);
    return PASSED();
}
