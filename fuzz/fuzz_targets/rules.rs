//! The fuzz target [`umemcg_fuzz::rules`]: for libFuzzer under cargo-fuzz, else on its own.
#![cfg_attr(fuzzing, no_main)]

umemcg_fuzz::target!(rules);
