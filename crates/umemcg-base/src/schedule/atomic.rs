//! The standard atomics with a switch point before each operation. One thread runs at a time, so
//! runs are sequentially consistent: the models test orderings, this scheduler does not.

pub use std::sync::atomic::{Ordering, compiler_fence, fence};

use super::scheduler::switch_point;

fn point() {
    switch_point(|policy| policy.atomic);
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// See the module.
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name(std::sync::atomic::$name);

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }

        #[allow(missing_docs)]
        impl $name {
            #[inline]
            pub const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }
            #[inline]
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
            #[inline]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }
            /// # Errors
            /// The actual value.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, success, failure)
            }
            /// # Errors
            /// The actual value. Never fails spuriously: that would not be repeatable.
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
            /// # Errors
            /// The value, when `next` returned `None` for it.
            #[inline]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point();
                self.0.fetch_update(set, fetch, next)
            }
        }
        atomic!(@fetch $name, $value, fetch_and, fetch_or, fetch_xor);
    };
    (number $name:ident, $value:ty) => {
        atomic!($name, $value);
        atomic!(@fetch $name, $value, fetch_add, fetch_sub, fetch_max, fetch_min);
    };
    (@fetch $name:ident, $value:ty, $($fetch:ident),*) => {
        #[allow(missing_docs)]
        impl $name {
            $(
                #[inline]
                pub fn $fetch(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$fetch(value, order)
                }
            )*
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(number AtomicU8, u8);
atomic!(number AtomicU16, u16);
atomic!(number AtomicU32, u32);
atomic!(number AtomicI32, i32);
atomic!(number AtomicU64, u64);
atomic!(number AtomicI64, i64);
atomic!(number AtomicUsize, usize);
