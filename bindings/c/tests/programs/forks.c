/* A child of a process that uses the library gets errors, and ends like any other process. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NR_CHILDREN 40
#define SECONDS_MAX 60

static volatile int is_over;

/* Keeps the library's locks busy while the process forks. */
static void *churn(void *user) {
    umemcg_group group = *(umemcg_group *)user;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        umemcg_owner owner;
        if (umemcg_charge(group, 65536, 0, &owner) == UMEMCG_OK)
            OK(umemcg_uncharge(owner, 65536));
    }
    return NULL;
}

static void in_child(umemcg_engine engine, umemcg_group group, umemcg_owner owner, umemcg_value value, const char *data) {
    umemcg_engine other;
    umemcg_owner more;
    uint64_t number;
    CODE(UMEMCG_FORKED, umemcg_engine_new(NULL, &other));
    CODE(UMEMCG_FORKED, umemcg_charge(group, 4096, 0, &more));
    CODE(UMEMCG_FORKED, umemcg_uncharge(owner, 4096));
    CODE(UMEMCG_FORKED, umemcg_group_get(group, "memory.current", &number));
    CODE(UMEMCG_FORKED, umemcg_group_close(group));
    CODE(UMEMCG_FORKED, umemcg_value_free(value));
    CODE(UMEMCG_FORKED, umemcg_engine_free(engine));
    CHECK(last_error().code == UMEMCG_FORKED);
    CHECK(data[0] == 'v'); /* what was held can still be read */
    exit(7);
}

/* Waits for a child; a hanging child is killed and fails the test. */
static int status_of(pid_t child) {
    int status, at;
    struct timespec moment = {0, 10 * 1000 * 1000};
    for (at = 0; at < SECONDS_MAX * 100; at++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return status;
        nanosleep(&moment, NULL);
    }
    kill(child, SIGKILL);
    fprintf(stderr, "a child was not at its end after %d seconds\n", SECONDS_MAX);
    exit(1);
}

int main(void) {
    umemcg_engine engine;
    umemcg_group group;
    umemcg_owner owner;
    umemcg_cache_config config = {0};
    umemcg_cache cache;
    umemcg_value value;
    const void *data;
    size_t len;
    pthread_t threads[2];
    pid_t child;
    int at, status;

    /* Before its first use, a child may use the library. */
    child = fork();
    if (child == 0) {
        engine = new_engine(4 * MIB);
        OK(umemcg_engine_free(engine));
        exit(7);
    }
    status = status_of(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);

    engine = new_engine(16 * MIB);
    group = new_group(engine, "/a", 4 * MIB);
    OK(umemcg_charge(group, MIB, 0, &owner));
    config.size = sizeof config;
    config.name = "c";
    OK(umemcg_cache_new(engine, &config, &cache));
    OK(umemcg_cache_insert(cache, group, "k", 1, "v", 1));
    OK(umemcg_cache_hold(cache, "k", 1, &value, &data, &len));
    for (at = 0; at < 2; at++)
        CHECK(pthread_create(&threads[at], NULL, churn, &group) == 0);
    for (at = 0; at < NR_CHILDREN; at++) {
        child = fork();
        if (child == 0)
            in_child(engine, group, owner, value, data);
        status = status_of(child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    for (at = 0; at < 2; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    /* The parent has noticed nothing. */
    OK(umemcg_value_free(value));
    OK(umemcg_uncharge(owner, MIB));
    OK(umemcg_engine_free(engine));
    return PASSED();
}
