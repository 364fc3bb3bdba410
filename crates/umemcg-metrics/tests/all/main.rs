//! The integration tests of `umemcg-metrics`, in one program.
#![cfg(not(schedule))]

mod dashboards;
mod scrape;
