//! Services with one agent, which has the workspace tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use turnwheel::testing::agents::{AgentDefinition, Catalog};
use turnwheel::testing::ids::WorkerId;
use turnwheel::testing::services::{ServicePorts, Services};
use turnwheel::testing::tools::workspace::builtins;

pub(crate) fn services(ports: ServicePorts) -> Services {
    let agent = AgentDefinition {
        name: "clerk".to_owned(),
        instructions: "Be good.".into(),
        tools: builtins(),
        revision: "r".to_owned(),
        ..AgentDefinition::default()
    };
    let agents = BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]);
    Services {
        agents: Catalog { agents, ..Catalog::default() }.into(),
        ..Services::new(WorkerId::new("w"), ports)
    }
}
