//! The fuzz target [`umemcg_fuzz::config`]: for libFuzzer under cargo-fuzz, else on its own.
#![cfg_attr(fuzzing, no_main)]

umemcg_fuzz::target!(config);
