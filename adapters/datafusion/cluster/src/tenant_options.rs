//! [`TenantOptions`]: the tenant and the session of a query, as options sent along by Ballista.
//!
//! A client sets them; the scheduler keeps them with the session; an executor finds them in the
//! configuration of each task. All three know the options only if their configuration is made by
//! [`config_producer`] or has them added.

use std::any::Any;
use std::sync::Arc;

use ballista::prelude::SessionConfigExt;
use ballista_core::ConfigProducer;
use datafusion::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionConfig;

/// The options `umemcg.tenant` and `umemcg.session`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantOptions {
    /// The tenant charged for the query.
    pub tenant: String,
    /// A name of the session, of the client's choice: queries of one session share a group.
    pub session: String,
}

impl TenantOptions {
    /// Returns the options of a session.
    pub fn new(tenant: &str, session: &str) -> Self {
        Self { tenant: tenant.to_owned(), session: session.to_owned() }
    }
}

impl ConfigExtension for TenantOptions {
    const PREFIX: &'static str = "umemcg";
}

impl ExtensionOptions for TenantOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "tenant" => value.clone_into(&mut self.tenant),
            "session" => value.clone_into(&mut self.session),
            _ => return Err(DataFusionError::Configuration(format!("there is no option umemcg.{key}"))),
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        // With the prefix: Ballista sends the keys unchanged.
        let entry = |key: &str, value: &str, description| ConfigEntry {
            key: format!("{}.{key}", Self::PREFIX),
            value: Some(value.to_owned()),
            description,
        };
        vec![
            entry("tenant", &self.tenant, "the tenant that pays for a query's memory"),
            entry("session", &self.session, "queries of one session share a group"),
        ]
    }
}

/// Returns the producer of configurations for schedulers and executors.
pub fn config_producer() -> ConfigProducer {
    Arc::new(|| SessionConfig::new_with_ballista().with_option_extension(TenantOptions::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballista_core::extension::SessionConfigHelperExt;

    #[test]
    fn options_travel_from_client_to_executor() {
        let sent =
            config_producer()().with_option_extension(TenantOptions::new("acme", "s-1")).to_key_value_pairs();
        let received = config_producer()().update_from_key_value_pair(&sent);
        let options = received.options().extensions.get::<TenantOptions>();
        assert_eq!(options, Some(&TenantOptions::new("acme", "s-1")));
    }

    #[test]
    fn an_unknown_option_is_refused() {
        assert!(TenantOptions::default().set("limit", "1").is_err());
    }
}
