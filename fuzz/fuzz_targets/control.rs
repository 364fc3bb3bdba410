//! The fuzz target [`umemcg_fuzz::control`]: for libFuzzer under cargo-fuzz, else on its own.
#![cfg_attr(fuzzing, no_main)]

umemcg_fuzz::target!(control);
