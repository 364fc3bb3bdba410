//! The integration tests of `umemcg-tidy`, in one program.

mod figures;
mod public_face;
mod tidy;
