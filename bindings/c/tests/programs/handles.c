/* Wrong handles and arguments of every kind. */
#include "check.h"

static void null_freed_and_wrong_handles(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/a", 4 * MIB);
    umemcg_group out;
    umemcg_owner owner;
    uint64_t number;

    CODE(UMEMCG_BAD_HANDLE, umemcg_engine_free(0));
    CODE(UMEMCG_BAD_HANDLE, umemcg_group_close(0));
    CODE(UMEMCG_BAD_HANDLE, umemcg_charge(0, 4096, 0, &owner));
    CHECK(owner == 0);
    CODE(UMEMCG_BAD_HANDLE, umemcg_uncharge(0, 4096));
    CODE(UMEMCG_BAD_HANDLE, umemcg_group_get(UINT64_MAX, "memory.current", &number));
    CODE(UMEMCG_BAD_HANDLE, umemcg_group_get(0x123456789abcdef, "memory.current", &number));

    CODE(UMEMCG_WRONG_KIND, umemcg_engine_free(group));
    CODE(UMEMCG_WRONG_KIND, umemcg_group_close(engine));
    CODE(UMEMCG_WRONG_KIND, umemcg_shrinker_free(group));
    CODE(UMEMCG_WRONG_KIND, umemcg_cache_free(group));
    CODE(UMEMCG_WRONG_KIND, umemcg_value_free(engine));
    CODE(UMEMCG_WRONG_KIND, umemcg_guarantee_free(group));
    CODE(UMEMCG_WRONG_KIND, umemcg_uncharge(group, 1));
    CODE(UMEMCG_WRONG_KIND, umemcg_account_try_grow(group, 1));
    CODE(UMEMCG_BAD_HANDLE, umemcg_account_free(0));
    CODE(UMEMCG_WRONG_KIND, umemcg_charge(engine, 1, 0, &owner));
    CODE(UMEMCG_WRONG_KIND, umemcg_group_open(group, "/b", UMEMCG_GROUP_CREATE, &out));
    CHECK(out == 0);

    OK(umemcg_group_close(group));
    CODE(UMEMCG_BAD_HANDLE, umemcg_group_close(group));
    CODE(UMEMCG_BAD_HANDLE, umemcg_charge(group, 4096, 0, &owner));
    /* The next object gets the same place, and another handle. */
    OK(umemcg_group_open(engine, "/a", 0, &out));
    CHECK(out != group);
    CODE(UMEMCG_BAD_HANDLE, umemcg_group_get(group, "memory.current", &number));

    OK(umemcg_engine_free(engine));
    CODE(UMEMCG_BAD_HANDLE, umemcg_engine_free(engine));
    CODE(UMEMCG_BAD_HANDLE, umemcg_group_get(out, "memory.current", &number));
}

static void handles_of_two_engines(void) {
    umemcg_engine one = new_engine(8 * MIB), two = new_engine(8 * MIB);
    umemcg_group of_two = new_group(two, "/b", MIB);
    umemcg_cache_config config = {0};
    umemcg_cache cache;
    umemcg_cache_statistics statistics = {0};
    config.size = sizeof config;
    config.name = "images";
    statistics.size = sizeof statistics;
    OK(umemcg_cache_new(one, &config, &cache));
    CODE(UMEMCG_OTHER_ENGINE, umemcg_cache_insert(cache, of_two, "k", 1, "v", 1));
    CHECK(strcmp(last_error().path, "/b") == 0);
    CODE(UMEMCG_OTHER_ENGINE, umemcg_cache_statistics_of(cache, of_two, &statistics));
    OK(umemcg_engine_free(one));
    /* The other engine goes on. */
    OK(umemcg_group_set(of_two, "memory.max", 2 * MIB));
    OK(umemcg_engine_free(two));
}

static void null_pointers_and_texts(void) {
    umemcg_engine engine = new_engine(8 * MIB), other;
    umemcg_group group = new_group(engine, "/a", MIB), out;
    umemcg_owner owner;
    uint64_t number;
    char path[300];
    size_t len;
    char long_name[300];

    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_engine_new(NULL, NULL));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, NULL, 0, &out));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, "/a", 0, NULL));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, "a", 0, &out));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, "", 0, &out));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, "/a/../b", UMEMCG_GROUP_CREATE, &out));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, "/\xff", UMEMCG_GROUP_CREATE, &out));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, "/a\nb", UMEMCG_GROUP_CREATE, &out));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, "/b", 77, &out));
    CODE(UMEMCG_NOT_FOUND, umemcg_group_open(engine, "/b", 0, &out));
    CHECK(strcmp(last_error().path, "/b") == 0);
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[0] = '/';
    long_name[sizeof long_name - 1] = 0;
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_open(engine, long_name, UMEMCG_GROUP_CREATE, &out));

    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_charge(group, 4096, 0, NULL));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_get(group, NULL, &number));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_get(group, "memory.max", NULL));
    CODE(UMEMCG_NOT_FOUND, umemcg_group_get(group, "memory.maximum", &number));
    CODE(UMEMCG_NOT_PERMITTED, umemcg_group_get(group, "memory.reclaim", &number));
    CODE(UMEMCG_NOT_PERMITTED, umemcg_group_set(group, "memory.current", 0));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_last_error(NULL));

    CODE(UMEMCG_TOO_SMALL, umemcg_group_path(group, path, 2, &len));
    CHECK(len == 3);
    CODE(UMEMCG_TOO_SMALL, umemcg_group_path(group, NULL, 0, &len));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_path(group, path, sizeof path, NULL));
    OK(umemcg_group_path(group, path, sizeof path, &len));
    CHECK(len == 3 && strcmp(path, "/a") == 0);

    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_charge(group, 0, 0, &owner));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_charge(group, (uint64_t)-1, 0, &owner));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_charge(group, (uint64_t)-4096, UMEMCG_CHARGE_FORCE, &owner));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_charge(group, INT64_MAX, UMEMCG_CHARGE_FORCE, &owner));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_charge(group, 1, 3, &owner));
    CODE(UMEMCG_REFUSED, umemcg_charge(group, INT64_MAX, 0, &owner));
    CHECK(last_error().wanted_bytes == INT64_MAX);
    CODE(UMEMCG_REFUSED, umemcg_charge(group, INT64_MAX, UMEMCG_CHARGE_AT_ONCE, &owner));
    CHECK(get(group, "memory.current") == 0);
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_guarantee_new(group, (uint64_t)-1, &out));
    CODE(UMEMCG_OVERCOMMITTED, umemcg_guarantee_new(group, INT64_MAX, &out));

    {
        umemcg_engine_config config = {0};
        CODE(UMEMCG_INVALID_ARGUMENT, umemcg_engine_new(&config, &other)); /* no size */
        config.size = sizeof config;
        config.pool_bytes = 4096;
        CODE(UMEMCG_INVALID_ARGUMENT, umemcg_engine_new(&config, &other));
        config.pool_bytes = UINT64_MAX;
        CODE(UMEMCG_INVALID_ARGUMENT, umemcg_engine_new(&config, &other));
        config.pool_bytes = 1 << 22;
        config.nr_workers = UINT32_MAX;
        CODE(UMEMCG_INVALID_ARGUMENT, umemcg_engine_new(&config, &other));
        config.nr_workers = 1;
        config.flags = 1u << 31;
        CODE(UMEMCG_INVALID_ARGUMENT, umemcg_engine_new(&config, &other));
        CHECK(other == 0);
    }
    {
        /* A program built with a newer header sets a field unknown to this version. */
        struct {
            umemcg_engine_config known;
            uint64_t newer;
        } config = {0};
        config.known.size = sizeof config;
        config.known.pool_bytes = 4 * MIB;
        config.newer = 1;
        CODE(UMEMCG_INVALID_ARGUMENT, umemcg_engine_new(&config.known, &other));
        config.newer = 0;
        OK(umemcg_engine_new(&config.known, &other));
        OK(umemcg_engine_free(other));
    }
    OK(umemcg_engine_free(engine));
}

int main(void) {
    CHECK(last_error().code == UMEMCG_OK);
    CHECK(umemcg_abi_version() == UMEMCG_ABI_VERSION);
    CHECK(strcmp(umemcg_version(), "0.1.0") == 0);
    CHECK(strcmp(umemcg_code_name(-5), "unknown code") == 0);
    null_freed_and_wrong_handles();
    handles_of_two_engines();
    null_pointers_and_texts();
    return PASSED();
}
