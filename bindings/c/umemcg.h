/* umemcg: memory cgroups inside one process.
 *
 * An engine has a pool of memory and a tree of groups. Memory kept in the pool is charged to a group
 * and to all groups above it. A group at its limit loses its own memory, not that of other groups.
 *
 * Handles. Every object is known by a number. A wrong handle gets an error code, never undefined
 * behaviour: a handle that is 0, has been freed (twice, too), names an object of another kind or
 * belongs to another engine. Handles may be used from many threads at once. Freeing an engine frees
 * everything that belongs to it, except held values.
 *
 * Errors. Functions return a code; umemcg_last_error() gives the calling thread the details: the group
 * that refused, the requested bytes, its limit and its free bytes. A result that cannot be given is 0.
 *
 * Pointers. A null pointer gets a code, too, unless the function says that it may be null. Strings are
 * UTF-8. As in any C function, a pointer to less memory than its length argument says is undefined
 * behaviour, and so is leaving a callback by an exception or longjmp.
 *
 * Callbacks run with no lock of the library held. Inside one, a function that may sleep or reclaim
 * returns UMEMCG_IN_CALLBACK.
 *
 * fork. In a child of a process that has used the library, every function returns UMEMCG_FORKED.
 *
 * This file is made from the sources: UPDATE_HEADER=1 cargo test -p umemcg-c --test header */

#ifndef UMEMCG_H
#define UMEMCG_H

#include <stddef.h>
#include <stdint.h>

/**
 * The version of this header's library.
 */
#define UMEMCG_VERSION_MAJOR 0

/**
 * See `UMEMCG_VERSION_MAJOR`.
 */
#define UMEMCG_VERSION_MINOR 1

/**
 * See `UMEMCG_VERSION_MAJOR`.
 */
#define UMEMCG_VERSION_PATCH 0

/**
 * The number in the library's soname. Programs work with every library of the same number.
 */
#define UMEMCG_ABI_VERSION 0

/**
 * No limit. As a result: no limit is set.
 */
#define UMEMCG_UNLIMITED UINT64_MAX

/**
 * The pool has watermarks from the start, so that callers usually need not reclaim when it is
 * full.
 */
#define UMEMCG_ENGINE_POOL_MARKS 1

/**
 * Protection that no child claims is not handed down to the children.
 */
#define UMEMCG_ENGINE_FLAT_PROTECTION 2

/**
 * Creates the missing groups of the path.
 */
#define UMEMCG_GROUP_CREATE 1

/**
 * Does not reclaim: fails immediately if there is no room.
 */
#define UMEMCG_CHARGE_AT_ONCE 1

/**
 * Reclaims once, and a refusal counts no `oom` event: for callers that can do with less.
 */
#define UMEMCG_CHARGE_OPPORTUNISTIC 2

/**
 * Charges whatever the limits are: for memory that is in use already.
 */
#define UMEMCG_CHARGE_FORCE 4

/**
 * Why an object left a cache: its memory was needed.
 */
#define UMEMCG_REMOVED_EVICTED 0

/**
 * It was too old.
 */
#define UMEMCG_REMOVED_EXPIRED 1

/**
 * A caller removed it.
 */
#define UMEMCG_REMOVED_REMOVED 2

/**
 * Another value took its place.
 */
#define UMEMCG_REMOVED_REPLACED 3

/**
 * The value meant to replace it was refused.
 */
#define UMEMCG_REMOVED_OUTDATED 4

/**
 * The result of a call. The numbers never change; new ones are added at the end.
 */
enum umemcg_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Nothing went wrong.
     */
    UMEMCG_OK = 0,
    /**
     * An argument is invalid: a null pointer, a negative or too large size, an invalid name, text
     * that is not UTF-8, or a struct size that is too small.
     */
    UMEMCG_INVALID_ARGUMENT = 1,
    /**
     * The handle is null, or its object has been freed.
     */
    UMEMCG_BAD_HANDLE = 2,
    /**
     * The handle names an object of another kind.
     */
    UMEMCG_WRONG_KIND = 3,
    /**
     * The two handles belong to two engines.
     */
    UMEMCG_OTHER_ENGINE = 4,
    /**
     * A limit leaves no room, and nothing more can be reclaimed.
     */
    UMEMCG_REFUSED = 5,
    /**
     * Guarantees and reservations leave no room, whatever is reclaimed.
     */
    UMEMCG_OVERCOMMITTED = 6,
    /**
     * Usage cannot be brought below the new limit; the old one stays.
     */
    UMEMCG_BUSY = 7,
    /**
     * Nothing has that name.
     */
    UMEMCG_NOT_FOUND = 8,
    /**
     * The name is taken.
     */
    UMEMCG_EXISTS = 9,
    /**
     * The group has groups below it.
     */
    UMEMCG_HAS_CHILDREN = 10,
    /**
     * The group has been removed.
     */
    UMEMCG_GONE = 11,
    /**
     * Not for the root group.
     */
    UMEMCG_IS_ROOT = 12,
    /**
     * The key can only be read, or only be written.
     */
    UMEMCG_NOT_PERMITTED = 13,
    /**
     * Less could be reclaimed than requested.
     */
    UMEMCG_AGAIN = 14,
    /**
     * The caller gives back more than is held.
     */
    UMEMCG_NOT_HELD = 15,
    /**
     * Called from inside a callback, where it could wait for itself.
     */
    UMEMCG_IN_CALLBACK = 16,
    /**
     * This process is a fork of a process that used the library.
     */
    UMEMCG_FORKED = 17,
    /**
     * The engine or the interpreter is ending.
     */
    UMEMCG_ENDING = 18,
    /**
     * The caller's buffer is too small for the answer.
     */
    UMEMCG_TOO_SMALL = 19,
    /**
     * Too many handles exist.
     */
    UMEMCG_TOO_MANY = 20,
    /**
     * The operating system refused memory or a thread.
     */
    UMEMCG_SYSTEM = 21,
    /**
     * A defect of the library; nothing else is affected.
     */
    UMEMCG_PANICKED = 22,
    /**
     * The request exceeds the limit of a group, whatever is given back.
     */
    UMEMCG_NEVER = 23,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum umemcg_code umemcg_code;
#else
typedef int32_t umemcg_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The details of a failed call.
 */
typedef struct {
    /**
     * `sizeof(umemcg_error)`; set by the caller.
     */
    size_t size;
    /**
     * The code of the failure; `UMEMCG_OK` if no call of this thread has failed.
     */
    umemcg_code code;
    /**
     * The path of the group that refused, or of the group concerned; empty if there is none. Valid
     * until the next failing call of this thread.
     */
    const char *path;
    /**
     * A sentence for people; valid as long as `path`.
     */
    const char *message;
    /**
     * The requested bytes.
     */
    uint64_t wanted_bytes;
    /**
     * The limit of the group; `UINT64_MAX` for none.
     */
    uint64_t limit_bytes;
    /**
     * Bytes still free in the group.
     */
    uint64_t free_bytes;
    /**
     * For accounts, bytes of the group's caches that could not be reclaimed now; an estimate.
     */
    uint64_t reclaimable_bytes;
} umemcg_error;

/**
 * The configuration of an engine. Zero in a field is the default.
 */
typedef struct {
    /**
     * `sizeof(umemcg_engine_config)`.
     */
    size_t size;
    /**
     * Bytes of the pool, which is the limit of the root group; 0 means 256 MiB.
     */
    uint64_t pool_bytes;
    /**
     * Threads that reclaim in the background; 0 means one for each processor, four at most.
     */
    uint32_t nr_workers;
    /**
     * `UMEMCG_ENGINE_…`, or'ed.
     */
    uint32_t flags;
} umemcg_engine_config;

/**
 * An engine: a pool of memory and a tree of groups. As with every handle, 0 is no engine.
 */
typedef uint64_t umemcg_engine;

/**
 * A group of an engine's tree. Several handles may name one group.
 */
typedef uint64_t umemcg_group;

/**
 * A share of the pool set aside for a group.
 */
typedef uint64_t umemcg_guarantee;

/**
 * The owner of charged bytes: a group, or the remains of a removed group. The handle is valid as
 * long as the owner has charged bytes; until then all charges of a group share it.
 */
typedef uint64_t umemcg_owner;

/**
 * Memory of the program's own that is charged to a group, such as the buffers of a query. Any
 * number of threads may grow and shrink it.
 */
typedef uint64_t umemcg_account;

/**
 * The target of a callback. Later versions may have more fields.
 */
typedef struct {
    /**
     * The number of the group; its child groups are not included. See `umemcg_group_id`.
     */
    uint64_t group_id;
    /**
     * The number of objects to scan.
     */
    uint64_t nr_objects;
    /**
     * The requested bytes: a scan may stop once it has freed as many.
     */
    uint64_t wanted_bytes;
} umemcg_shrink_target;

/**
 * Returns the number of objects of the group that could be freed. 0 means no objects at all: the
 * function is not called again for that group before `umemcg_shrinker_announce`. A negative number
 * means that the number is unknown now. Must not block.
 */
typedef int64_t (*umemcg_count_fn)(void *user, const umemcg_shrink_target *target);

/**
 * The result of a scan.
 */
typedef struct {
    /**
     * Scanned objects; 0 means that there are no more.
     */
    uint64_t nr_objects;
    /**
     * Bytes freed, and uncharged.
     */
    uint64_t freed_bytes;
} umemcg_scanned;

/**
 * Scans up to `nr_objects` objects of the target, frees the freeable ones and uncharges their
 * bytes. Writes the result to `*scanned`, which is zero before. Returns 0, or another number if no
 * progress can be made now.
 */
typedef int32_t (*umemcg_scan_fn)(void *user, const umemcg_shrink_target *target, umemcg_scanned *scanned);

/**
 * Called after the removal of a group: its objects belong to the group above from now on.
 */
typedef void (*umemcg_reparent_fn)(void *user, uint64_t group_id, uint64_t parent_id);

/**
 * A destructor of user data.
 */
typedef void (*umemcg_free_fn)(void *user);

/**
 * The configuration of a shrinker. Callbacks run on any thread, on several at once, with no lock
 * of the library held. They may call functions that neither sleep nor reclaim.
 */
typedef struct {
    /**
     * `sizeof(umemcg_shrinker_config)`.
     */
    size_t size;
    /**
     * The name in statistics; copied.
     */
    const char *name;
    /**
     * Must be set.
     */
    umemcg_count_fn count;
    /**
     * Must be set.
     */
    umemcg_scan_fn scan;
    /**
     * May be null.
     */
    umemcg_reparent_fn reparent;
    /**
     * The first argument of the callbacks.
     */
    void *user;
    /**
     * Called once with `user` when no callback can run any more; may be null. Not called if the
     * shrinker was not made.
     */
    umemcg_free_fn free_user;
    /**
     * The cost of making an object again, in seeks; 0 means 2.
     */
    uint32_t seeks;
    /**
     * Objects scanned at once; 0 means 128.
     */
    uint32_t batch;
} umemcg_shrinker_config;

/**
 * A registered shrinker.
 */
typedef uint64_t umemcg_shrinker;

/**
 * Called for every object leaving the cache. The bytes are valid until it returns. Runs on any
 * thread, with no lock of the library held, and may call functions that neither sleep nor reclaim.
 */
typedef void (*umemcg_removed_fn)(void *user,
                                  const void *key,
                                  size_t key_len,
                                  const void *value,
                                  size_t value_len,
                                  int32_t why);

/**
 * The configuration of a cache. Zero in a field is the default.
 */
typedef struct {
    /**
     * `sizeof(umemcg_cache_config)`.
     */
    size_t size;
    /**
     * The name in statistics; copied.
     */
    const char *name;
    /**
     * Bounds the bytes of the whole cache, in addition to the limits of the groups; 0 means no
     * bound.
     */
    uint64_t bytes_max;
    /**
     * Milliseconds after which objects expire, about 100 days at most; 0 means never.
     */
    uint64_t time_to_live_ms;
    /**
     * Milliseconds without use after which objects expire; 0 means never.
     */
    uint64_t time_to_idle_ms;
    /**
     * May be null.
     */
    umemcg_removed_fn removed;
    /**
     * The first argument of `removed`.
     */
    void *user;
    /**
     * Called once with `user` when `removed` cannot be called any more; may be null. Not called if
     * the cache was not made.
     */
    umemcg_free_fn free_user;
} umemcg_cache_config;

/**
 * A cache of bytes by bytes. Each object is charged to the group that inserts it.
 */
typedef uint64_t umemcg_cache;

/**
 * A value held in place: it stays readable until it is freed, even after leaving the cache.
 */
typedef uint64_t umemcg_value;

/**
 * Statistics of a cache.
 */
typedef struct {
    /**
     * `sizeof(umemcg_cache_statistics)`; set by the caller.
     */
    size_t size;
    /**
     * Objects in the cache.
     */
    uint64_t nr_objects;
    /**
     * Bytes charged for them.
     */
    uint64_t bytes;
    /**
     * Bytes of held values that have left the cache; they stay charged.
     */
    uint64_t held_bytes;
    /**
     * Look-ups that found an object.
     */
    uint64_t nr_hits;
    /**
     * Look-ups that found none; not counted for a single group.
     */
    uint64_t nr_misses;
    /**
     * Objects that were inserted.
     */
    uint64_t nr_inserted;
    /**
     * Objects refused for lack of room.
     */
    uint64_t nr_refused;
    /**
     * Objects that were evicted because memory was needed.
     */
    uint64_t nr_evicted;
    /**
     * Objects that expired.
     */
    uint64_t nr_expired;
    /**
     * Objects that a caller removed.
     */
    uint64_t nr_removed;
    /**
     * Objects whose key was inserted again.
     */
    uint64_t nr_replaced;
} umemcg_cache_statistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Writes the details of this thread's last failed call to `*error`. A successful call leaves them
 * unchanged. Set `error->size` first. Works in a forked child, too.
 */
umemcg_code umemcg_last_error(umemcg_error *error);

/**
 * Returns the name of a code, such as `refused`; never null, and valid for ever.
 */
const char *umemcg_code_name(int32_t code);

/**
 * Returns the version of the library, such as `0.1.0`; valid for ever.
 */
const char *umemcg_version(void);

/**
 * Returns the number of the library's binary interface, `UMEMCG_ABI_VERSION` of its header.
 */
uint32_t umemcg_abi_version(void);

/**
 * Starts an engine. `config` may be null for the defaults. Memory of the pool is taken as it is
 * used. Errors: `INVALID_ARGUMENT` for a pool below 2 MiB or beyond the address space, `SYSTEM`.
 */
umemcg_code umemcg_engine_new(const umemcg_engine_config *config, umemcg_engine *engine);

/**
 * Frees an engine with everything that belongs to it, except held values. The handles of all freed
 * objects name nothing afterwards, and their charges are given back. Waits for running callbacks.
 * No callback runs after it returns, unless another thread is still in a call using the engine.
 */
umemcg_code umemcg_engine_free(umemcg_engine engine);

/**
 * Does a round of housekeeping now: returns free memory to the operating system. Takes
 * milliseconds for each hundred megabytes.
 */
umemcg_code umemcg_engine_trim(umemcg_engine engine);

/**
 * Opens the group at a path from the root: `/a/b`; `/` is the root. With `UMEMCG_GROUP_CREATE`,
 * creates the missing groups; this may reclaim, and so may sleep. Errors: `NOT_FOUND`,
 * `INVALID_ARGUMENT`, `REFUSED` when there is no room for the state of a new group.
 */
umemcg_code umemcg_group_open(umemcg_engine engine, const char *path, uint32_t flags, umemcg_group *group);

/**
 * Closes a handle of a group. The group and its charges stay.
 */
umemcg_code umemcg_group_close(umemcg_group group);

/**
 * Removes a group without children. Its charges move to the group above. Its handles stay open,
 * and later charges through them go to the group above, too. Errors: `HAS_CHILDREN`, `IS_ROOT`,
 * `GONE`.
 */
umemcg_code umemcg_group_remove(umemcg_group group);

/**
 * Writes the number of a group to `*id`. Callbacks get this number. No other group of this process
 * ever has it.
 */
umemcg_code umemcg_group_id(umemcg_group group, uint64_t *id);

/**
 * Writes the path of a group and a zero byte to `path`, which has room for `room` bytes. `*len`
 * becomes the length of the path with the zero byte. Errors: `TOO_SMALL`; only `*len` is written
 * then.
 */
umemcg_code umemcg_group_path(umemcg_group group, char *path, size_t room, size_t *len);

/**
 * Reads a control key, such as `memory.current`: bytes or a count. docs/semantics/control-files.md
 * defines the control file of the same name; no limit is `UMEMCG_UNLIMITED`. Errors: `NOT_FOUND`,
 * `NOT_PERMITTED` for a write-only key, `GONE`.
 */
umemcg_code umemcg_group_get(umemcg_group group, const char *key, uint64_t *value);

/**
 * Writes a control key, such as `memory.max`. A new limit may reclaim, and so may sleep. Errors:
 * `NOT_FOUND`, `NOT_PERMITTED` for a read-only key, `GONE`, `IS_ROOT`, `BUSY`, `AGAIN`,
 * `INVALID_ARGUMENT` for watermarks that do not fit.
 */
umemcg_code umemcg_group_set(umemcg_group group, const char *key, uint64_t value);

/**
 * Sets bytes of the pool aside for a group until the guarantee is freed: others may cache in them,
 * and lose them when the group charges. Errors: `OVERCOMMITTED` with the group that has too little
 * left to commit.
 */
umemcg_code umemcg_guarantee_new(umemcg_group group, uint64_t bytes, umemcg_guarantee *guarantee);

/**
 * Ends a guarantee.
 */
umemcg_code umemcg_guarantee_free(umemcg_guarantee guarantee);

/**
 * Charges `bytes` of the caller's own memory to a group and all groups above it. If one of them is
 * at its limit, reclaims from that group, and so may sleep. At most one of the flags may be set.
 * Errors: `REFUSED` with the group without room, its limit and the bytes free below the limit;
 * `INVALID_ARGUMENT` for 0 bytes or a negative number.
 */
umemcg_code umemcg_charge(umemcg_group group, uint64_t bytes, uint32_t flags, umemcg_owner *owner);

/**
 * Gives back charged bytes, in any portions. Never blocks. After the last byte, the owner's handle
 * names nothing. Errors: `NOT_HELD` when fewer bytes are charged; nothing is changed then, and
 * `free_bytes` of the details is the number of charged bytes.
 */
umemcg_code umemcg_uncharge(umemcg_owner owner, uint64_t bytes);

/**
 * Opens an empty account in a group. When the group is removed, the bytes of the account move to
 * the group above, which is also charged for later growth.
 */
umemcg_code umemcg_account_new(umemcg_group group, umemcg_account *account);

/**
 * Closes an account and gives its bytes back.
 */
umemcg_code umemcg_account_free(umemcg_account account);

/**
 * Grows an account. If a group is full, first reclaims the missing bytes from caches of that
 * group: about a microsecond for each page, without waiting. Errors: `NEVER` for more than the
 * limit of a group, `REFUSED` for more than is free now, `OVERCOMMITTED` for bytes guaranteed to
 * others; the details have the group and the numbers. A refusal is an ordinary answer and counts
 * no `oom` event.
 */
umemcg_code umemcg_account_try_grow(umemcg_account account, uint64_t bytes);

/**
 * Grows an account whatever the limits are, for memory that is in use already. Never blocks.
 * Errors: `INVALID_ARGUMENT` for more than any memory has.
 */
umemcg_code umemcg_account_grow(umemcg_account account, uint64_t bytes);

/**
 * Gives back bytes of an account. Never blocks. Errors: `NOT_HELD` when the account holds less;
 * nothing is changed then.
 */
umemcg_code umemcg_account_shrink(umemcg_account account, uint64_t bytes);

/**
 * Moves bytes of an account to a new one in the same group. Charges nothing. Errors: `NOT_HELD`
 * when it holds less.
 */
umemcg_code umemcg_account_split(umemcg_account account, uint64_t bytes, umemcg_account *part);

/**
 * Writes the current bytes of an account to `*bytes`.
 */
umemcg_code umemcg_account_bytes(umemcg_account account, uint64_t *bytes);

/**
 * Writes the peak of an account to `*bytes`: the most bytes it ever held.
 */
umemcg_code umemcg_account_peak(umemcg_account account, uint64_t *bytes);

/**
 * Registers a shrinker. Its callbacks run for a group from `umemcg_shrinker_announce` on.
 */
umemcg_code umemcg_shrinker_new(umemcg_engine engine,
                                const umemcg_shrinker_config *config,
                                umemcg_shrinker *shrinker);

/**
 * Announces that a shrinker has objects of a group. Call it whenever the group gets its first
 * object, after the count function can see it. Additional calls do no harm.
 */
umemcg_code umemcg_shrinker_announce(umemcg_shrinker shrinker, umemcg_group group);

/**
 * Frees a shrinker. Waits for its callbacks running on other threads. None runs after it returns,
 * except the callback that made the call.
 */
umemcg_code umemcg_shrinker_free(umemcg_shrinker shrinker);

/**
 * Makes a cache.
 */
umemcg_code umemcg_cache_new(umemcg_engine engine, const umemcg_cache_config *config, umemcg_cache *cache);

/**
 * Frees a cache with its objects. Held values stay readable.
 */
umemcg_code umemcg_cache_free(umemcg_cache cache);

/**
 * Stores a copy of a value under a copy of its key, and charges both to a group; the key's
 * previous value goes. May reclaim, and so may sleep. Errors: `REFUSED` with the group that has no
 * room; the key has no value then.
 */
umemcg_code umemcg_cache_insert(umemcg_cache cache,
                                umemcg_group group,
                                const void *key,
                                size_t key_len,
                                const void *value,
                                size_t value_len);

/**
 * Copies the value of a key to `value`, which has room for `room` bytes; `*value_len` becomes its
 * length. Errors: `NOT_FOUND`, and `TOO_SMALL`, which writes only `*value_len`.
 */
umemcg_code umemcg_cache_get(umemcg_cache cache,
                             const void *key,
                             size_t key_len,
                             void *value,
                             size_t room,
                             size_t *value_len);

/**
 * Holds the value of a key in place, without a copy: `*data` and `*len` are its bytes, readable
 * until `*value` is freed. The value stays charged to its group until then, even after leaving the
 * cache. Errors: `NOT_FOUND`.
 */
umemcg_code umemcg_cache_hold(umemcg_cache cache,
                              const void *key,
                              size_t key_len,
                              umemcg_value *value,
                              const void **data,
                              size_t *len);

/**
 * Releases a held value.
 */
umemcg_code umemcg_value_free(umemcg_value value);

/**
 * Removes a key. Errors: `NOT_FOUND`.
 */
umemcg_code umemcg_cache_remove(umemcg_cache cache, const void *key, size_t key_len);

/**
 * Removes all objects.
 */
umemcg_code umemcg_cache_clear(umemcg_cache cache);

/**
 * Writes the statistics of a cache to `*statistics`, for the objects of one group, or for all
 * objects if `group` is 0. Set `statistics->size` first.
 */
umemcg_code umemcg_cache_statistics_of(umemcg_cache cache,
                                       umemcg_group group,
                                       umemcg_cache_statistics *statistics);

/**
 * Returns the name of a statistic, such as `reserved_bytes`; null from the number of statistics
 * on. Valid for ever. Names ending in `_bytes` are bytes, the others are counts or pages. A later
 * version of the library may have more statistics, at the end.
 */
const char *umemcg_statistic_name(size_t index);

/**
 * Writes the statistics of a group, everything below it included, to `values`, in the order of
 * `umemcg_statistic_name`, and at most `room` of them. `*nr` becomes the number of written values.
 * No limit is `INT64_MAX`. Takes some microseconds.
 */
umemcg_code umemcg_group_statistics(umemcg_group group, int64_t *values, size_t room, size_t *nr);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UMEMCG_H */
