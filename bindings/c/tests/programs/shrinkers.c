/* A program's own cache gives memory back; misbehaving callbacks. */
#include "check.h"

#include <pthread.h>

#define OBJECT_BYTES 4096

/* The objects of one group, and the faults of its callbacks. */
struct objects {
    pthread_mutex_t lock;
    umemcg_owner owner;
    umemcg_engine engine;
    umemcg_group group;
    umemcg_shrinker shrinker;
    uint64_t group_id, nr, nr_freed, nr_scans, nr_bad;
    int64_t lie;
    int is_greedy, frees_itself, nr_user_freed;
};

static int64_t count(void *user, const umemcg_shrink_target *target) {
    struct objects *objects = user;
    int64_t nr;
    pthread_mutex_lock(&objects->lock);
    nr = target->group_id != objects->group_id ? 0 : objects->lie ? objects->lie : (int64_t)objects->nr;
    pthread_mutex_unlock(&objects->lock);
    return nr;
}

static int32_t scan(void *user, const umemcg_shrink_target *target, umemcg_scanned *scanned) {
    struct objects *objects = user;
    uint64_t nr;
    pthread_mutex_lock(&objects->lock);
    objects->nr_scans++;
    nr = target->nr_objects < objects->nr ? target->nr_objects : objects->nr;
    objects->nr -= nr;
    objects->nr_freed += nr;
    pthread_mutex_unlock(&objects->lock);
    if (nr > 0 && umemcg_uncharge(objects->owner, nr * OBJECT_BYTES) != UMEMCG_OK)
        objects->nr_bad++;
    if (objects->is_greedy) {
        /* All functions that could wait for this callback. */
        umemcg_owner owner;
        umemcg_engine other;
        if (umemcg_charge(objects->group, MIB, 0, &owner) != UMEMCG_IN_CALLBACK ||
            umemcg_group_set(objects->group, "memory.reclaim", MIB) != UMEMCG_IN_CALLBACK ||
            umemcg_group_remove(objects->group) != UMEMCG_IN_CALLBACK ||
            umemcg_engine_free(objects->engine) != UMEMCG_IN_CALLBACK ||
            umemcg_engine_new(NULL, &other) != UMEMCG_IN_CALLBACK)
            objects->nr_bad++;
        scanned->nr_objects = UINT64_MAX;
        scanned->freed_bytes = UINT64_MAX;
        return 0;
    }
    if (objects->frees_itself && umemcg_shrinker_free(objects->shrinker) != UMEMCG_OK)
        objects->nr_bad++;
    scanned->nr_objects = nr;
    scanned->freed_bytes = nr * OBJECT_BYTES;
    return objects->lie ? -1 : 0;
}

static void reparent(void *user, uint64_t group_id, uint64_t parent_id) {
    struct objects *objects = user;
    pthread_mutex_lock(&objects->lock);
    if (objects->group_id == group_id)
        objects->group_id = parent_id;
    pthread_mutex_unlock(&objects->lock);
}

static void free_user(void *user) {
    ((struct objects *)user)->nr_user_freed++;
}

/* An engine with one group at 1 MiB, and `nr` objects in it. */
static void begin(struct objects *objects, uint64_t nr) {
    umemcg_shrinker_config config = {0};
    uint64_t at;
    memset(objects, 0, sizeof *objects);
    pthread_mutex_init(&objects->lock, NULL);
    objects->engine = new_engine(16 * MIB);
    objects->group = new_group(objects->engine, "/a", MIB);
    OK(umemcg_group_id(objects->group, &objects->group_id));
    config.size = sizeof config;
    config.name = "my objects";
    config.user = objects;
    config.free_user = free_user;
    CODE(UMEMCG_INVALID_ARGUMENT, umemcg_shrinker_new(objects->engine, &config, &objects->shrinker));
    config.count = count;
    config.scan = scan;
    config.reparent = reparent;
    CODE(UMEMCG_BAD_HANDLE, umemcg_shrinker_new(0, &config, &objects->shrinker));
    CHECK(objects->nr_user_freed == 0);
    OK(umemcg_shrinker_new(objects->engine, &config, &objects->shrinker));
    for (at = 0; at < nr; at++) {
        OK(umemcg_charge(objects->group, OBJECT_BYTES, 0, &objects->owner));
        pthread_mutex_lock(&objects->lock);
        objects->nr++;
        pthread_mutex_unlock(&objects->lock);
        OK(umemcg_shrinker_announce(objects->shrinker, objects->group));
    }
}

static void end(struct objects *objects) {
    OK(umemcg_engine_free(objects->engine));
    CHECK(objects->nr_user_freed == 1 && objects->nr_bad == 0);
    CODE(UMEMCG_BAD_HANDLE, umemcg_shrinker_free(objects->shrinker));
    pthread_mutex_destroy(&objects->lock);
}

static void a_full_group_gets_objects_back(void) {
    struct objects objects;
    umemcg_owner owner;
    begin(&objects, 200);
    OK(umemcg_charge(objects.group, MIB / 2, 0, &owner));
    CHECK(objects.nr_freed > 0 && objects.nr + objects.nr_freed == 200);
    CHECK(get(objects.group, "memory.current") <= MIB);
    end(&objects);
}

static void a_removed_group_leaves_its_objects_above(void) {
    struct objects objects;
    umemcg_group root;
    uint64_t root_id;
    begin(&objects, 50);
    OK(umemcg_group_open(objects.engine, "/", 0, &root));
    OK(umemcg_group_id(root, &root_id));
    OK(umemcg_group_remove(objects.group));
    CHECK(objects.group_id == root_id);
    OK(umemcg_group_set(root, "vm.drop_caches", 2));
    CHECK(objects.nr == 0 && objects.nr_freed == 50);
    end(&objects);
}

static void a_scan_may_say_anything(void) {
    struct objects objects;
    umemcg_owner owner;
    begin(&objects, 200);
    objects.is_greedy = 1;
    OK(umemcg_charge(objects.group, MIB / 2, 0, &owner));
    CHECK(objects.nr_scans > 0);
    CHECK(get(objects.group, "memory.current") <= MIB);
    end(&objects);
}

static void a_count_may_say_anything(void) {
    static const int64_t LIES[] = {INT64_MAX, INT64_MIN, -1};
    size_t at;
    for (at = 0; at < sizeof LIES / sizeof *LIES; at++) {
        struct objects objects;
        umemcg_owner owner;
        begin(&objects, 200);
        objects.lie = LIES[at];
        CODE(UMEMCG_REFUSED, umemcg_charge(objects.group, 2 * MIB, 0, &owner));
        umemcg_charge(objects.group, MIB / 2, 0, &owner);
        CHECK(get(objects.group, "memory.current") <= MIB);
        end(&objects);
    }
}

static void a_shrinker_may_free_itself(void) {
    struct objects objects;
    umemcg_owner owner;
    begin(&objects, 200);
    objects.frees_itself = 1;
    umemcg_charge(objects.group, MIB / 2, 0, &owner);
    CHECK(objects.nr_scans == 1 && objects.nr_user_freed == 1);
    end(&objects);
}

static void two_engines_know_their_own_groups(void) {
    struct objects one, two;
    begin(&one, 1);
    begin(&two, 1);
    CODE(UMEMCG_OTHER_ENGINE, umemcg_shrinker_announce(one.shrinker, two.group));
    CODE(UMEMCG_BAD_HANDLE, umemcg_shrinker_announce(one.shrinker, 0));
    CODE(UMEMCG_WRONG_KIND, umemcg_shrinker_announce(one.shrinker, one.shrinker));
    end(&one);
    end(&two);
}

int main(void) {
    a_full_group_gets_objects_back();
    a_removed_group_leaves_its_objects_above();
    a_scan_may_say_anything();
    a_count_may_say_anything();
    a_shrinker_may_free_itself();
    two_engines_know_their_own_groups();
    return PASSED();
}
