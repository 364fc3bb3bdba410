/* Shared by the test programs: a failed check ends the program with the place and the last error. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "umemcg.h"

static int nr_checks;

static inline umemcg_error last_error(void) {
    umemcg_error error;
    memset(&error, 0, sizeof error);
    error.size = sizeof error;
    if (umemcg_last_error(&error) != UMEMCG_OK) {
        fprintf(stderr, "umemcg_last_error failed\n");
        exit(1);
    }
    return error;
}

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        __atomic_add_fetch(&nr_checks, 1, __ATOMIC_RELAXED);                                                 \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* The call returns this code. */
#define CODE(wanted, call)                                                                                   \
    do {                                                                                                     \
        umemcg_code code_ = (call);                                                                          \
        __atomic_add_fetch(&nr_checks, 1, __ATOMIC_RELAXED);                                                 \
        if (code_ != (wanted)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: wanted `%s`, was `%s` (%s)\n", __FILE__, __LINE__, #call,            \
                    umemcg_code_name(wanted), umemcg_code_name(code_), last_error().message);                \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define OK(call) CODE(UMEMCG_OK, call)

#define MIB ((uint64_t)1 << 20)

static inline umemcg_engine new_engine(uint64_t pool_bytes) {
    umemcg_engine_config config = {0};
    umemcg_engine engine;
    config.size = sizeof config;
    config.pool_bytes = pool_bytes;
    config.nr_workers = 1;
    OK(umemcg_engine_new(&config, &engine));
    return engine;
}

static inline umemcg_group new_group(umemcg_engine engine, const char *path, uint64_t max_bytes) {
    umemcg_group group;
    OK(umemcg_group_open(engine, path, UMEMCG_GROUP_CREATE, &group));
    OK(umemcg_group_set(group, "memory.max", max_bytes));
    return group;
}

static inline uint64_t get(umemcg_group group, const char *key) {
    uint64_t value;
    OK(umemcg_group_get(group, key, &value));
    return value;
}

#define PASSED() (printf("%s: %d checks passed\n", __FILE__, nr_checks), 0)

#endif
