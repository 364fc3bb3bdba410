/* Caches of bytes, held values, and the callback for removed objects. */
#include "check.h"

struct heard {
    umemcg_cache cache;
    umemcg_group group;
    int nr_removed, nr_evicted, nr_freed, nr_bad;
};

static void removed(void *user, const void *key, size_t key_len, const void *value, size_t value_len, int32_t why) {
    struct heard *heard = user;
    umemcg_owner owner;
    size_t len;
    __atomic_add_fetch(why == UMEMCG_REMOVED_EVICTED ? &heard->nr_evicted : &heard->nr_removed, 1, __ATOMIC_RELAXED);
    if (key == NULL || key_len == 0 || (value == NULL && value_len != 0))
        __atomic_add_fetch(&heard->nr_bad, 1, __ATOMIC_RELAXED);
    /* Functions that may wait fail, the others work. */
    if (heard->cache != 0) {
        int is_right = umemcg_cache_insert(heard->cache, heard->group, "x", 1, "y", 1) == UMEMCG_IN_CALLBACK &&
                       umemcg_charge(heard->group, 1, 0, &owner) == UMEMCG_IN_CALLBACK &&
                       umemcg_cache_free(heard->cache) == UMEMCG_IN_CALLBACK &&
                       umemcg_cache_get(heard->cache, "none", 4, NULL, 0, &len) == UMEMCG_NOT_FOUND;
        if (!is_right)
            __atomic_add_fetch(&heard->nr_bad, 1, __ATOMIC_RELAXED);
    }
}

static void freed(void *user) {
    ((struct heard *)user)->nr_freed++;
}

static umemcg_cache new_cache(umemcg_engine engine, struct heard *heard) {
    umemcg_cache_config config = {0};
    umemcg_cache cache;
    config.size = sizeof config;
    config.name = "pages of books";
    config.removed = removed;
    config.user = heard;
    config.free_user = freed;
    OK(umemcg_cache_new(engine, &config, &cache));
    return cache;
}

static void values_come_and_go(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/a", MIB);
    struct heard heard = {0};
    umemcg_cache cache = new_cache(engine, &heard);
    umemcg_cache_statistics statistics = {0};
    char value[16], big[8192];
    size_t len;
    int key;

    OK(umemcg_cache_insert(cache, group, "one", 3, "value", 5));
    OK(umemcg_cache_get(cache, "one", 3, value, sizeof value, &len));
    CHECK(len == 5 && memcmp(value, "value", 5) == 0);
    CODE(UMEMCG_TOO_SMALL, umemcg_cache_get(cache, "one", 3, value, 4, &len));
    CHECK(len == 5);
    CODE(UMEMCG_NOT_FOUND, umemcg_cache_get(cache, "two", 3, value, sizeof value, &len));
    OK(umemcg_cache_insert(cache, group, "empty", 5, NULL, 0));
    OK(umemcg_cache_get(cache, "empty", 5, NULL, 0, &len));
    CHECK(len == 0);
    OK(umemcg_cache_insert(cache, group, "one", 3, "other", 5));
    CHECK(heard.nr_removed == 1);
    OK(umemcg_cache_remove(cache, "one", 3));
    CODE(UMEMCG_NOT_FOUND, umemcg_cache_remove(cache, "one", 3));

    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_insert(cache, group, NULL, 3, "v", 1));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_insert(cache, group, "k", (size_t)-1, "v", 1));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_insert(cache, group, "k", 1, "v", (size_t)-1));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_insert(cache, group, "k", 1, "v", SIZE_MAX / 2));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_get(cache, "k", (size_t)-1, value, sizeof value, &len));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_get(cache, "k", 1, value, sizeof value, NULL));

    /* Eight times the limit passes through, and the group stays below its limit. */
    memset(big, 7, sizeof big);
    heard.group = group;
    heard.cache = cache;
    for (key = 0; key < 1024; key++)
        OK(umemcg_cache_insert(cache, group, &key, sizeof key, big, sizeof big));
    CHECK(get(group, "memory.current") <= MIB);
    statistics.size = sizeof statistics;
    OK(umemcg_cache_statistics_of(cache, group, &statistics));
    CHECK(statistics.nr_evicted > 800 && statistics.nr_inserted >= 1024 && statistics.bytes <= MIB);
    CHECK(heard.nr_evicted == (int)statistics.nr_evicted && heard.nr_bad == 0);
    heard.cache = 0;

    OK(umemcg_cache_clear(cache));
    OK(umemcg_cache_statistics_of(cache, 0, &statistics));
    CHECK(statistics.nr_objects == 0 && statistics.bytes == 0);
    CHECK(heard.nr_freed == 0);
    OK(umemcg_cache_free(cache));
    CHECK(heard.nr_freed == 1);
    CODE(UMEMCG_BAD_HANDLE, umemcg_cache_free(cache));
    OK(umemcg_engine_free(engine));
}

static void held_values_stay_readable(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/a", MIB);
    struct heard heard = {0};
    umemcg_cache cache = new_cache(engine, &heard);
    umemcg_value value, none, other;
    const void *data, *nothing;
    size_t len, at;
    char big[65536];
    memset(big, 42, sizeof big);
    OK(umemcg_cache_insert(cache, group, "k", 1, big, sizeof big));
    OK(umemcg_cache_insert(cache, group, "l", 1, big, 1));
    OK(umemcg_cache_hold(cache, "k", 1, &value, &data, &len));
    CODE(UMEMCG_NOT_FOUND, umemcg_cache_hold(cache, "none", 4, &none, &nothing, &at));
    CHECK(none == 0 && nothing == NULL && at == 0);
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_hold(cache, "k", 1, &none, NULL, &at));
    OK(umemcg_cache_remove(cache, "k", 1));
    /* Out of the cache, and still charged. */
    OK(umemcg_cache_hold(cache, "l", 1, &other, &nothing, &at));
    OK(umemcg_value_free(other));
    OK(umemcg_group_set(group, "memory.force_empty", 0));
    CHECK(get(group, "memory.current") >= sizeof big);
    OK(umemcg_cache_free(cache));
    OK(umemcg_engine_free(engine));
    CHECK(len == sizeof big);
    for (at = 0; at < len; at++)
        CHECK(((const char *)data)[at] == 42);
    OK(umemcg_value_free(value));
    CODE(UMEMCG_BAD_HANDLE, umemcg_value_free(value));
}

static void ages_and_bounds(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/a", MIB);
    umemcg_cache_config config = {0};
    umemcg_cache cache;
    struct heard heard = {0};
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_new(engine, NULL, &cache));
    config.size = sizeof config;
    config.user = &heard;
    config.free_user = freed;
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_cache_new(engine, &config, &cache)); /* no name */
    config.name = "old";
    CODE(UMEMCG_BAD_HANDLE, umemcg_cache_new(0, &config, &cache));
    CHECK(heard.nr_freed == 0);
    config.time_to_live_ms = UINT64_MAX;
    config.time_to_idle_ms = UINT64_MAX;
    config.bytes_max = UINT64_MAX;
    OK(umemcg_cache_new(engine, &config, &cache));
    OK(umemcg_cache_insert(cache, group, "k", 1, "v", 1));
    OK(umemcg_engine_free(engine)); /* frees the cache, and its user data */
    CHECK(heard.nr_freed == 1);
    CODE(UMEMCG_BAD_HANDLE, umemcg_cache_free(cache));
}

int main(void) {
    values_come_and_go();
    held_values_stay_readable();
    ages_and_bounds();
    return PASSED();
}
