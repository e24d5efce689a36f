//! Registry of services that the app injects into its tools: database pools, clients,
//! configuration.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::code::ToolError;

/// One value per type. Clones share the values.
#[derive(Clone, Default)]
pub struct ServiceRegistry(Arc<Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>>);

impl fmt::Debug for ServiceRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services(…)")
    }
}

impl ServiceRegistry {
    /// # Errors
    /// A value of this type exists already, and tools find values by type. Report it at start-up.
    pub fn add<T: Send + Sync + 'static>(&self, service: T) -> Result<(), String> {
        let mut services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match services.insert(TypeId::of::<T>(), Arc::new(service)) {
            None => Ok(()),
            Some(_) => Err(format!(
                "two services of the type `{}` are registered: wrap one in a type of its own",
                type_name::<T>()
            )),
        }
    }

    pub(super) fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, ToolError> {
        let services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = services.get(&TypeId::of::<T>()).cloned();
        found.and_then(|service| service.downcast().ok()).ok_or_else(|| {
            ToolError::failed(format!(
                "the app has no service of the type `{}`: register it with `App::service`",
                type_name::<T>()
            ))
        })
    }
}
