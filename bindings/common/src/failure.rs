//! [`Failure`]: an error as a code, the group concerned, and numbers.

use std::fmt;
use std::path::Path;

use umemcg::Refused;
use umemcg::objects::DeclineReason;
use umemcg::{
    ChargeError, CreateError, EngineError, Group, InvalidMarks, LimitError, ReclaimError, Refusal,
    RemoveError,
};

/// The result of a call. The numbers never change; new ones are added at the end.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// Nothing went wrong.
    Ok = 0,
    /// An argument is invalid: a null pointer, a negative or too large size, an invalid name, text
    /// that is not UTF-8, or a struct size that is too small.
    InvalidArgument = 1,
    /// The handle is null, or its object has been freed.
    BadHandle = 2,
    /// The handle names an object of another kind.
    WrongKind = 3,
    /// The two handles belong to two engines.
    OtherEngine = 4,
    /// A limit leaves no room, and nothing more can be reclaimed.
    Refused = 5,
    /// Guarantees and reservations leave no room, whatever is reclaimed.
    Overcommitted = 6,
    /// Usage cannot be brought below the new limit; the old one stays.
    Busy = 7,
    /// Nothing has that name.
    NotFound = 8,
    /// The name is taken.
    Exists = 9,
    /// The group has groups below it.
    HasChildren = 10,
    /// The group has been removed.
    Gone = 11,
    /// Not for the root group.
    IsRoot = 12,
    /// The key can only be read, or only be written.
    NotPermitted = 13,
    /// Less could be reclaimed than requested.
    Again = 14,
    /// The caller gives back more than is held.
    NotHeld = 15,
    /// Called from inside a callback, where it could wait for itself.
    InCallback = 16,
    /// This process is a fork of a process that used the library.
    Forked = 17,
    /// The engine or the interpreter is ending.
    Ending = 18,
    /// The caller's buffer is too small for the answer.
    TooSmall = 19,
    /// Too many handles exist.
    TooMany = 20,
    /// The operating system refused memory or a thread.
    System = 21,
    /// A defect of the library; nothing else is affected.
    Panicked = 22,
    /// The request exceeds the limit of a group, whatever is given back.
    Never = 23,
}

/// An error in a form for crossing a language boundary.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The code of the failure.
    pub code: Code,
    /// The path of the group that refused, or of the group concerned; empty if there is none.
    pub path: String,
    /// The requested bytes; 0 where the error is about no bytes.
    pub wanted_bytes: u64,
    /// The limit of that group.
    pub limit_bytes: u64,
    /// Bytes still free in the group: below its limit, or left to commit.
    pub free_bytes: u64,
    /// Bytes of the group's caches that could not be reclaimed now, but may be later; an estimate,
    /// and known for accounts only.
    pub reclaimable_bytes: u64,
    /// A sentence for people.
    pub message: String,
}

impl Failure {
    /// Creates a failure from a code and a sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        let (wanted_bytes, limit_bytes, free_bytes, reclaimable_bytes) = (0, 0, 0, 0);
        Self { code, path: String::new(), wanted_bytes, limit_bytes, free_bytes, reclaimable_bytes, message }
    }

    /// Creates a failure for an invalid argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// Sets the path of the group concerned.
    #[must_use]
    pub fn at(mut self, path: &Path) -> Self {
        self.path = path.to_string_lossy().into_owned();
        self
    }

    /// Sets the group concerned, with its numbers.
    #[must_use]
    pub fn of(self, group: &Group, wanted_bytes: u64, free_bytes: u64) -> Self {
        Self { wanted_bytes, free_bytes, limit_bytes: group.max_bytes(), ..self.at(&group.path()) }
    }

    /// Creates the failure of a refused charge.
    pub fn refused(refused: &Refused, wanted_bytes: u64) -> Self {
        let message = ChargeError::Limit(Refused { group: refused.group.clone(), wanted_bytes }).to_string();
        Self::new(Code::Refused, message).of(&refused.group, wanted_bytes, refused.group.margin_bytes())
    }

    /// Creates the failure of a charge. `wanted_bytes` is the caller's whole request; the error may
    /// have only a part of it.
    pub fn charge(error: &ChargeError, wanted_bytes: u64) -> Self {
        match error {
            ChargeError::Limit(refused) => Self::refused(refused, wanted_bytes),
            other => Self::new(Code::Refused, other.to_string()),
        }
    }

    /// Creates the failure of an object that was not stored.
    pub fn declined(reason: &DeclineReason, wanted_bytes: u64) -> Self {
        match reason {
            DeclineReason::Refused(error) => Self::charge(error, wanted_bytes),
            other => Self { wanted_bytes, ..Self::new(Code::Refused, other.to_string()) },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<&Refusal> for Failure {
    fn from(refusal: &Refusal) -> Self {
        let of = |code, wanted, free| Self::new(code, refusal.to_string()).of(refusal.group(), wanted, free);
        match *refusal {
            Refusal::Never { wanted, .. } => of(Code::Never, wanted, refusal.group().margin_bytes()),
            Refusal::NotNow { wanted, free, reclaimable, .. } => {
                Self { reclaimable_bytes: reclaimable, ..of(Code::Refused, wanted, free) }
            }
            Refusal::Overcommitted { wanted, available, .. } => of(Code::Overcommitted, wanted, available),
            _ => of(Code::Refused, 0, 0),
        }
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Self {
        let code = match &error {
            CreateError::Exists => Code::Exists,
            CreateError::ParentGone => Code::Gone,
            CreateError::Refused(refused) => return Self::refused(refused, refused.wanted_bytes),
            _ => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

impl From<RemoveError> for Failure {
    fn from(error: RemoveError) -> Self {
        let code = match error {
            RemoveError::HasChildren => Code::HasChildren,
            RemoveError::IsRoot => Code::IsRoot,
            _ => Code::Gone,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LimitError> for Failure {
    fn from(error: LimitError) -> Self {
        let code = match error {
            LimitError::IsRoot => Code::IsRoot,
            _ => Code::Busy,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ReclaimError> for Failure {
    fn from(error: ReclaimError) -> Self {
        let code = match error {
            ReclaimError::IsRoot => Code::IsRoot,
            _ => Code::Again,
        };
        Self::new(code, error.to_string())
    }
}

impl From<InvalidMarks> for Failure {
    fn from(error: InvalidMarks) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let code = match error {
            EngineError::PoolTooSmall { .. } => Code::InvalidArgument,
            _ => Code::System,
        };
        Self::new(code, error.to_string())
    }
}
