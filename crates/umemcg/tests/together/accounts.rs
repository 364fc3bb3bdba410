//! Accounts and reservations as actors: they take memory that reclaim cannot have, share accounts
//! between threads, wait and give up, while their groups' limits change and the groups are removed.
//! Each knows what it holds, and the account must say the same.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use umemcg::{Account, Group, Refusal};
use umemcg_base::schedule;
use umemcg_base::sync::Instant;

use crate::disk::Random;
use crate::world::World;

/// Operations of each of the two threads of a turn.
const NR_OPERATIONS: usize = 30;
/// Most bytes that a thread asks for at a time.
const GROWTH_MAX: usize = 96 << 10;
/// Polls of a future before it is given up.
const NR_POLLS: usize = 4;

fn group(world: &World, random: &mut Random) -> Arc<Group> {
    let groups = world.groups.lock();
    Arc::clone(&groups[random.below(groups.len())])
}

/// Has two threads grow, shrink and split one account, and each of them reserve beside it.
pub fn use_accounts(world: &World, random: &mut Random) {
    let account = Arc::new(world.engine.account(&group(world, random)));
    let other = {
        let (account, mut random) = (Arc::clone(&account), Random(random.next()));
        schedule::spawn("account", move || change(&account, &mut random)).unwrap()
    };
    let mut held = change(&account, random);
    reserve(world, random);
    held += other.join().unwrap();
    assert_eq!(account.bytes(), held, "an account has lost count");
    assert!(account.peak() >= held);
    assert_eq!(account.clear(), held);
}

/// Does random operations; returns what the thread has of the account in the end.
fn change(account: &Account, random: &mut Random) -> u64 {
    let mut held = 0;
    for _ in 0..NR_OPERATIONS {
        let bytes = random.below(GROWTH_MAX) as u64;
        match random.below(8) {
            0 => {
                account.grow(bytes);
                held += bytes;
            }
            1..4 => match account.try_grow(bytes) {
                Ok(()) => held += bytes,
                Err(Refusal::Never { limit, wanted, .. }) => assert!(wanted > limit),
                Err(refusal) => assert!(refusal.may_pass()),
            },
            4..6 => {
                let back = bytes.min(held);
                account.shrink(back);
                held -= back;
            }
            6 => {
                let part = account.split(bytes.min(held));
                held -= part.bytes();
                if random.below(2) == 0 {
                    held += part.bytes();
                    account.merge(part);
                }
            }
            _ => schedule::sleep(Duration::from_micros(random.below(500) as u64)),
        }
    }
    held
}

/// Waits for memory, with a deadline or as a future that may be given up.
fn reserve(world: &World, random: &mut Random) {
    let (group, bytes) = (group(world, random), random.below(4 * GROWTH_MAX) as u64);
    if random.below(2) == 0 {
        let deadline = Instant::now() + Duration::from_micros(random.below(20_000) as u64);
        if let Ok(reservation) = world.engine.reserve_until(&group, bytes, deadline) {
            assert_eq!(reservation.bytes(), bytes, "a reservation of another size");
        }
        return;
    }
    let mut future = pin!(world.engine.reserve_async(&group, bytes));
    for _ in 0..NR_POLLS {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(reservation)) => {
                assert_eq!(reservation.bytes(), bytes, "a reservation of another size");
                return;
            }
            Poll::Ready(Err(refusal)) => return assert!(!refusal.may_pass(), "{refusal}"),
            Poll::Pending => schedule::sleep(Duration::from_micros(random.below(2_000) as u64)),
        }
    }
}
