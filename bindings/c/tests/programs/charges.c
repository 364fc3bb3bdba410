/* Groups, control keys, charges, guarantees and statistics. */
#include "check.h"

static void a_group_at_its_limit_names_itself(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group parent = new_group(engine, "/team", 4 * MIB), child = new_group(engine, "/team/job", UMEMCG_UNLIMITED);
    umemcg_owner owner, again;
    OK(umemcg_charge(child, 3 * MIB, 0, &owner));
    CODE(UMEMCG_REFUSED, umemcg_charge(child, 2 * MIB, 0, &again));
    umemcg_error error = last_error();
    CHECK(error.code == UMEMCG_REFUSED && strcmp(error.path, "/team") == 0);
    CHECK(error.wanted_bytes == 2 * MIB && error.limit_bytes == 4 * MIB);
    CHECK(error.free_bytes <= MIB && error.free_bytes > MIB - 65536);
    CHECK(strstr(error.message, "/team") != NULL);
    OK(umemcg_charge(child, 4096, 0, &again));
    CHECK(again == owner);

    CODE(UMEMCG_NOT_HELD, umemcg_uncharge(owner, 4 * MIB));
    CHECK(last_error().free_bytes == 3 * MIB + 4096);
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_uncharge(owner, (uint64_t)-1));
    OK(umemcg_uncharge(owner, 0));
    OK(umemcg_uncharge(owner, MIB));
    OK(umemcg_uncharge(owner, 2 * MIB + 4096));
    CODE(UMEMCG_BAD_HANDLE, umemcg_uncharge(owner, 1));

    OK(umemcg_charge(child, 6 * MIB, UMEMCG_CHARGE_FORCE, &owner));
    CHECK(get(parent, "memory.current") >= 6 * MIB);
    OK(umemcg_uncharge(owner, 6 * MIB));
    OK(umemcg_engine_free(engine));
}

static void charges_outlive_handles_and_groups(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group root, group = new_group(engine, "/a/b", 4 * MIB), other;
    umemcg_owner owner, above;
    OK(umemcg_group_open(engine, "/", 0, &root));
    OK(umemcg_charge(group, MIB, 0, &owner));
    OK(umemcg_group_open(engine, "/a", 0, &other));
    CODE(UMEMCG_HAS_CHILDREN, umemcg_group_remove(other));
    CHECK(strcmp(last_error().path, "/a") == 0);
    OK(umemcg_group_remove(group));
    CODE(UMEMCG_GONE, umemcg_group_remove(group));
    CODE(UMEMCG_GONE, umemcg_group_set(group, "memory.max", MIB));
    CODE(UMEMCG_IS_ROOT, umemcg_group_remove(root));
    CODE(UMEMCG_IS_ROOT, umemcg_group_set(root, "memory.max", MIB));
    /* A removed group's handle charges the group above. */
    OK(umemcg_charge(group, MIB, 0, &above));
    CHECK(above != owner);
    OK(umemcg_group_close(group));
    CHECK(get(other, "memory.current") >= 2 * MIB);
    OK(umemcg_uncharge(owner, MIB));
    OK(umemcg_uncharge(above, MIB));
    OK(umemcg_charge(other, MIB, 0, &owner));
    OK(umemcg_engine_free(engine)); /* gives the rest back */
    CODE(UMEMCG_BAD_HANDLE, umemcg_uncharge(owner, MIB));
}

static void control_keys(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/a", 8 * MIB);
    umemcg_owner owner;
    OK(umemcg_group_set(group, "memory.min", MIB));
    OK(umemcg_group_set(group, "memory.low", 2 * MIB));
    OK(umemcg_group_set(group, "memory.high", 6 * MIB));
    OK(umemcg_group_set(group, "memory.soft_limit_in_bytes", 3 * MIB));
    OK(umemcg_group_set(group, "memory.high_wmark_distance", 2 * MIB));
    OK(umemcg_group_set(group, "memory.low_wmark_distance", MIB));
    CHECK(get(group, "memory.min") == MIB && get(group, "memory.low") == 2 * MIB);
    CHECK(get(group, "memory.high") == 6 * MIB && get(group, "memory.max") == 8 * MIB);
    CHECK(get(group, "memory.soft_limit_in_bytes") == 3 * MIB);
    CHECK(get(group, "memory.low_wmark_distance") == MIB);
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_set(group, "memory.low_wmark_distance", 7 * MIB));
    OK(umemcg_charge(group, 4 * MIB, 0, &owner));
    CODE(UMEMCG_BUSY, umemcg_group_set(group, "memory.limit_in_bytes", 2 * MIB));
    CHECK(strcmp(last_error().path, "/a") == 0 && last_error().wanted_bytes == 2 * MIB);
    CHECK(get(group, "memory.max") == 8 * MIB);
    CODE(UMEMCG_AGAIN, umemcg_group_set(group, "memory.reclaim", MIB));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_set(group, "vm.drop_caches", 4));
    OK(umemcg_group_set(group, "vm.drop_caches", 3));
    CHECK(get(group, "memory.peak") >= 4 * MIB);
    OK(umemcg_uncharge(owner, 4 * MIB));
    OK(umemcg_group_set(group, "memory.peak", 0));
    CHECK(get(group, "memory.peak") < 4 * MIB);
    OK(umemcg_engine_trim(engine));
    OK(umemcg_engine_free(engine));
}

static void guarantees_leave_room(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group one = new_group(engine, "/one", UMEMCG_UNLIMITED), two = new_group(engine, "/two", UMEMCG_UNLIMITED);
    umemcg_guarantee guarantee, more;
    OK(umemcg_guarantee_new(one, 12 * MIB, &guarantee));
    CODE(UMEMCG_OVERCOMMITTED, umemcg_guarantee_new(two, 8 * MIB, &more));
    CHECK(strcmp(last_error().path, "/") == 0 && last_error().free_bytes == 4 * MIB);
    OK(umemcg_guarantee_free(guarantee));
    CODE(UMEMCG_BAD_HANDLE, umemcg_guarantee_free(guarantee));
    OK(umemcg_guarantee_new(two, 8 * MIB, &more));
    OK(umemcg_engine_free(engine));
    CODE(UMEMCG_BAD_HANDLE, umemcg_guarantee_free(more));
}

static int64_t statistic(umemcg_group group, const char *wanted) {
    int64_t values[256];
    size_t nr, at;
    OK(umemcg_group_statistics(group, values, 256, &nr));
    CHECK(umemcg_statistic_name(nr) == NULL);
    for (at = 0; at < nr; at++) {
        if (strcmp(umemcg_statistic_name(at), wanted) == 0)
            return values[at];
    }
    CHECK(!"there is a statistic of that name");
    return 0;
}

static void statistics(void) {
    umemcg_engine engine = new_engine(16 * MIB);
    umemcg_group group = new_group(engine, "/a", MIB);
    umemcg_owner owner;
    int64_t first = 0;
    size_t nr;
    OK(umemcg_charge(group, 65536, 0, &owner));
    CODE(UMEMCG_REFUSED, umemcg_charge(group, MIB, 0, &owner));
    CHECK(statistic(group, "usage_bytes") >= 65536 && statistic(group, "max_bytes") == (int64_t)MIB);
    CHECK(statistic(group, "event_max") > 0 && statistic(group, "event_oom") > 0);
    OK(umemcg_group_statistics(group, &first, 1, &nr));
    CHECK(nr == 1 && first >= 65536);
    OK(umemcg_group_statistics(group, &first, 0, &nr));
    CHECK(nr == 0);
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_statistics(group, NULL, 1, &nr));
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_group_statistics(group, &first, SIZE_MAX, &nr));
    OK(umemcg_engine_free(engine));
}

int main(void) {
    a_group_at_its_limit_names_itself();
    charges_outlive_handles_and_groups();
    control_keys();
    guarantees_leave_room();
    statistics();
    return PASSED();
}
