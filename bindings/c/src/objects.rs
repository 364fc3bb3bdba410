//! The objects behind handles. Each object except a value belongs to an engine, and holds a
//! reference to it: nothing in use disappears, whatever is freed first.
//!
//! Freeing an engine frees everything that belongs to it, in this order:
//! 1. the engine is marked as closed, so that nothing more is added;
//! 2. all its objects leave the table, so that no new call finds them;
//! 3. shrinkers and caches end, after waiting for running callbacks;
//! 4. the rest; the last call still using the engine, if any, ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use umemcg::objects::Pinned;
use umemcg::shrinker::{Registration, Shrinker};
use umemcg::{Charge, Engine, Group, Guarantee, ObjectCache};
use umemcg_bindings::{CheckedAccount, Code, Failure};

use crate::callback::UserData;
use crate::charge_purses::{Purse, Purses};
use crate::handle_table::{HandleTable, kind_of};

/// Keys and values of caches.
pub(crate) type Key = Box<[u8]>;
pub(crate) type Value = Arc<[u8]>;

static OBJECTS: HandleTable<Object> = HandleTable::new();

/// An engine, as long as anything of it is in use.
#[derive(Debug)]
pub(crate) struct EnginePart {
    pub(crate) engine: Arc<Engine>,
    /// Charges made by `umemcg_charge`.
    pub(crate) purses: Purses,
    /// Stored before the objects are taken out of the table. Read under the table's lock.
    is_closed: AtomicBool,
}

impl EnginePart {
    pub(crate) fn new(engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self { engine, purses: Purses::default(), is_closed: AtomicBool::new(false) })
    }

    /// Returns the size of the pool, the largest possible size of an object.
    pub(crate) fn pool_bytes(&self) -> u64 {
        self.engine.root().max_bytes()
    }
}

#[derive(Debug)]
pub(crate) struct GroupPart {
    pub(crate) engine: Arc<EnginePart>,
    pub(crate) group: Arc<Group>,
}

#[derive(Debug)]
pub(crate) struct GuaranteePart {
    engine: Arc<EnginePart>,
    _guarantee: Guarantee,
}

impl GuaranteePart {
    pub(crate) fn new(engine: &Arc<EnginePart>, guarantee: Guarantee) -> Self {
        Self { engine: Arc::clone(engine), _guarantee: guarantee }
    }
}

#[derive(Debug)]
pub(crate) struct OwnerPart {
    pub(crate) engine: Arc<EnginePart>,
    pub(crate) purse: Arc<Purse>,
}

#[derive(Debug)]
pub(crate) struct AccountPart {
    pub(crate) engine: Arc<EnginePart>,
    pub(crate) account: CheckedAccount,
}

#[derive(Debug)]
pub(crate) struct ShrinkerPart {
    pub(crate) engine: Arc<EnginePart>,
    pub(crate) id: u32,
    pub(crate) _registration: Registration,
    pub(crate) _shrinker: Arc<dyn Shrinker>,
    /// Last: freed when no callback runs.
    pub(crate) _user: Arc<UserData>,
}

#[derive(Debug)]
pub(crate) struct CachePart {
    pub(crate) engine: Arc<EnginePart>,
    pub(crate) cache: ObjectCache<Key, Value>,
    /// Last: freed when no callback runs.
    pub(crate) _user: Arc<UserData>,
}

/// Charged to its group as long as it is held. Freeing the engine does not free it: a held value
/// stays readable when another thread frees the engine.
#[derive(Debug)]
pub(crate) struct ValuePart {
    pub(crate) _value: Pinned<Value>,
    /// Last: the charge leads to its groups.
    pub(crate) _engine: Arc<Engine>,
}

macro_rules! objects {
    ($($variant:ident($part:ty) = $kind:literal, $name:literal;)+) => {
        /// See the module.
        #[derive(Debug)]
        pub(crate) enum Object {
            $($variant($part),)+
        }

        impl Object {
            fn kind(&self) -> u8 {
                match self {
                    $(Self::$variant(_) => $kind,)+
                }
            }
        }

        fn kind_name(kind: u8) -> &'static str {
            match kind {
                $($kind => $name,)+
                _ => "nothing",
            }
        }

        $(impl Part for $part {
            const KIND: u8 = $kind;

            fn of(object: &Object) -> Option<&Self> {
                match object {
                    Object::$variant(part) => Some(part),
                    _ => None,
                }
            }
        })+
    };
}

/// The object behind a handle of one kind.
pub(crate) trait Part {
    const KIND: u8;
    fn of(object: &Object) -> Option<&Self>;
}

objects! {
    Engine(Arc<EnginePart>) = 1, "an engine";
    Group(GroupPart) = 2, "a group";
    Owner(OwnerPart) = 3, "an owner";
    Guarantee(GuaranteePart) = 4, "a guarantee";
    Account(AccountPart) = 5, "an account";
    Shrinker(ShrinkerPart) = 6, "a shrinker";
    Cache(CachePart) = 7, "a cache";
    Value(ValuePart) = 8, "a value";
}

impl Object {
    pub(crate) fn engine(&self) -> Option<&Arc<EnginePart>> {
        Some(match self {
            Self::Engine(engine) => engine,
            Self::Group(part) => &part.engine,
            Self::Owner(part) => &part.engine,
            Self::Guarantee(part) => &part.engine,
            Self::Account(part) => &part.engine,
            Self::Shrinker(part) => &part.engine,
            Self::Cache(part) => &part.engine,
            Self::Value(_) => return None,
        })
    }

    /// Returns whether the object has callbacks, as shrinkers and caches do; its end waits for
    /// them.
    fn calls_back(&self) -> bool {
        matches!(self, Self::Shrinker(_) | Self::Cache(_))
    }
}

fn bad_handle(handle: u64, wanted: u8) -> Failure {
    let wanted = kind_name(wanted);
    if handle == 0 {
        return Failure::new(Code::BadHandle, format!("a null handle where {wanted} is needed"));
    }
    if OBJECTS.get(handle).is_some() {
        let kind = kind_name(kind_of(handle));
        return Failure::new(Code::WrongKind, format!("a handle of {kind} where {wanted} is needed"));
    }
    Failure::new(Code::BadHandle, format!("a handle that names nothing where {wanted} is needed"))
}

/// Adds an object; `taken_over` runs once the object is sure to be added.
pub(crate) fn add_with(object: Object, taken_over: impl FnOnce()) -> Result<u64, Failure> {
    let (kind, engine) = (object.kind(), object.engine().cloned());
    let may_add = || {
        let is_open = engine.is_none_or(|engine| !engine.is_closed.load(Relaxed));
        if is_open {
            taken_over();
        }
        is_open
    };
    match OBJECTS.insert(kind, object, may_add) {
        Ok(Some(handle)) => Ok(handle),
        Ok(None) => Err(Failure::new(Code::Ending, "the engine is being freed")),
        Err(_) => Err(Failure::new(Code::TooMany, "there are more than 16 million handles")),
    }
}

/// Adds an object and returns its handle.
pub(crate) fn add(object: Object) -> Result<u64, Failure> {
    add_with(object, || ())
}

/// Calls `use_it` with the object of a handle, alive until `use_it` returns.
pub(crate) fn with<P: Part, R>(
    handle: u64,
    use_it: impl FnOnce(&P) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let found = OBJECTS.get(handle);
    let part = found.as_ref().and_then(|entry| entry.as_ref()).and_then(|entry| P::of(&entry.object));
    use_it(part.ok_or_else(|| bad_handle(handle, P::KIND))?)
}

/// Calls `use_it` with a group, if it belongs to the engine of an object.
pub(crate) fn with_group_of<R>(
    engine: &Arc<EnginePart>,
    handle: u64,
    use_it: impl FnOnce(&GroupPart) -> Result<R, Failure>,
) -> Result<R, Failure> {
    with(handle, |part: &GroupPart| {
        if !Arc::ptr_eq(&part.engine, engine) {
            let message = "the group belongs to another engine";
            return Err(Failure::new(Code::OtherEngine, message).at(&part.group.path()));
        }
        use_it(part)
    })
}

/// Frees the object of a handle after the last call using it.
pub(crate) fn free<P: Part>(handle: u64) -> Result<(), Failure> {
    with(handle, |_: &P| Ok(()))?;
    OBJECTS.remove(handle).map(drop).ok_or_else(|| bad_handle(handle, P::KIND))
}

/// Frees an engine with all its objects.
pub(crate) fn free_engine(handle: u64) -> Result<(), Failure> {
    let engine = with(handle, |engine: &Arc<EnginePart>| Ok(Arc::clone(engine)))?;
    if engine.is_closed.swap(true, Relaxed) {
        return Err(bad_handle(handle, <Arc<EnginePart> as Part>::KIND));
    }
    let all = OBJECTS.remove_all(|object| object.engine().is_some_and(|of| Arc::ptr_eq(of, &engine)));
    let (callers, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| entry.object.calls_back());
    drop(callers);
    drop(others);
    let charges: Vec<Charge> = engine.purses.take_all();
    drop(charges);
    Ok(())
}
