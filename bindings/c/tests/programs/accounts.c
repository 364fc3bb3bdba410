/* Accounts: their bytes, refused growth, and wrong numbers. */
#include "check.h"

#include <pthread.h>

static uint64_t bytes_of(umemcg_account account) {
    uint64_t bytes;
    OK(umemcg_account_bytes(account, &bytes));
    return bytes;
}

static void an_account_holds_what_it_says(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/q", 4 * MIB);
    umemcg_account account, part;
    uint64_t peak;
    OK(umemcg_account_new(group, &account));
    OK(umemcg_account_try_grow(account, 3 * MIB));
    CHECK(get(group, "memory.current") >= 3 * MIB);
    OK(umemcg_account_shrink(account, MIB));
    OK(umemcg_account_split(account, MIB, &part));
    CHECK(bytes_of(account) == MIB && bytes_of(part) == MIB);
    OK(umemcg_account_peak(account, &peak));
    CHECK(peak == 3 * MIB);
    OK(umemcg_account_grow(part, 6 * MIB)); /* beyond the limit */
    CHECK(get(group, "memory.current") >= 8 * MIB);
    OK(umemcg_account_free(account));
    CODE(UMEMCG_BAD_HANDLE, umemcg_account_free(account));
    /* The account stays after the removal of its group. */
    OK(umemcg_group_remove(group));
    CHECK(bytes_of(part) == 7 * MIB);
    OK(umemcg_account_shrink(part, 7 * MIB));
    OK(umemcg_account_free(part));
    OK(umemcg_engine_free(engine));
}

static void a_refusal_says_what_can_be_done(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/q", 4 * MIB), other = new_group(engine, "/other", UMEMCG_UNLIMITED);
    umemcg_account account;
    umemcg_guarantee guarantee;
    OK(umemcg_account_new(group, &account));
    OK(umemcg_account_try_grow(account, 3 * MIB));
    CODE(UMEMCG_NEVER, umemcg_account_try_grow(account, 5 * MIB));
    CHECK(strcmp(last_error().path, "/q") == 0 && last_error().limit_bytes == 4 * MIB);
    CODE(UMEMCG_REFUSED, umemcg_account_try_grow(account, 2 * MIB));
    CHECK(last_error().wanted_bytes == 2 * MIB && last_error().free_bytes <= MIB);
    CHECK(get(group, "memory.events.oom") == 0);
    OK(umemcg_group_set(group, "memory.max", 8 * MIB));
    OK(umemcg_guarantee_new(other, 12 * MIB, &guarantee));
    CODE(UMEMCG_OVERCOMMITTED, umemcg_account_try_grow(account, 2 * MIB));
    CHECK(strcmp(last_error().path, "/") == 0);
    OK(umemcg_guarantee_free(guarantee));
    CHECK(bytes_of(account) == 3 * MIB);
    OK(umemcg_engine_free(engine));
    CODE(UMEMCG_BAD_HANDLE, umemcg_account_shrink(account, 1));
}

static void wrong_numbers_change_nothing(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/q", 4 * MIB);
    umemcg_account account, part;
    OK(umemcg_account_new(group, &account));
    OK(umemcg_account_try_grow(account, 4096));
    CODE(UMEMCG_NOT_HELD, umemcg_account_shrink(account, 4097));
    CHECK(last_error().free_bytes == 4096);
    CODE(UMEMCG_NOT_HELD, umemcg_account_shrink(account, (uint64_t)-1));
    CODE(UMEMCG_NOT_HELD, umemcg_account_split(account, 4097, &part));
    CHECK(part == 0);
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_account_try_grow(account, (uint64_t)-4096));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_account_grow(account, (uint64_t)-4096));
    CODE(UMEMCG_NEVER, umemcg_account_try_grow(account, INT64_MAX));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_account_split(account, 1, NULL));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_account_bytes(account, NULL));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_account_new(group, NULL));
    OK(umemcg_account_try_grow(account, 0));
    OK(umemcg_account_shrink(account, 0));
    CHECK(bytes_of(account) == 4096);
    OK(umemcg_engine_free(engine));
}

#define NR_THREADS 4
#define NR_ROUNDS 20000

/* Gives back more than it took, so some calls are refused. */
static void *spend(void *user) {
    umemcg_account account = *(umemcg_account *)user;
    uint64_t *kept = calloc(1, sizeof *kept);
    int at;
    for (at = 0; at < NR_ROUNDS; at++) {
        if (umemcg_account_try_grow(account, 100) == UMEMCG_OK)
            *kept += 100;
        if (umemcg_account_shrink(account, 130) == UMEMCG_OK)
            *kept -= 130;
    }
    return kept;
}

static void threads_that_take_too_much_keep_it_exact(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/q", MIB);
    umemcg_account account;
    pthread_t threads[NR_THREADS];
    uint64_t sum = 0;
    int at;
    OK(umemcg_account_new(group, &account));
    for (at = 0; at < NR_THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, spend, &account) == 0);
    for (at = 0; at < NR_THREADS; at++) {
        void *kept;
        CHECK(pthread_join(threads[at], &kept) == 0);
        sum += *(uint64_t *)kept;
        free(kept);
    }
    CHECK(sum == bytes_of(account));
    OK(umemcg_engine_free(engine));
}

int main(void) {
    an_account_holds_what_it_says();
    a_refusal_says_what_can_be_done();
    wrong_numbers_change_nothing();
    threads_that_take_too_much_keep_it_exact();
    return PASSED();
}
