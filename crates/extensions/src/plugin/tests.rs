//! Numbers in the state of a plugin.

use serde::Deserialize;
use turnwheel_test_support::numbers::ANY_NUMBER;
use turnwheel_tools::plugin_state::{CallPluginState, ToolPlugin};

use super::*;

#[derive(Debug, Deserialize, JsonSchema, Serialize)]
struct Payment {
    #[schemars(with = "Value")]
    sum: RawJson,
}

/// Its state is of the type `S`.
#[derive(Debug)]
struct Keeper<S> {
    schema_version: u32,
    state: std::marker::PhantomData<S>,
}

impl<S> Plugin for Keeper<S>
where
    S: fmt::Debug + JsonSchema + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    type State = S;

    fn name(&self) -> &'static str {
        "keeper"
    }

    fn schema_version(&self) -> u32 {
        self.schema_version
    }

    async fn prepare(&self, _: &mut Prepare<'_, S>) -> Result<(), PluginError> {
        Ok(())
    }
}

fn keeper<S>(schema_version: u32) -> Keeper<S> {
    Keeper { schema_version, state: std::marker::PhantomData }
}

/// Sets the state from a tool of a plugin with states of this type.
fn set<S>(call: &CallPluginState, payment: &Payment) -> Result<ToolPlugin, String>
where
    S: fmt::Debug + JsonSchema + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let schema = StateSchema::new::<S>("keeper").unwrap();
    let access = ToolStateAccess { plugin: Arc::new(keeper::<S>(1)), schema };
    let tool = ToolPlugin { access: Arc::new(access), writes_state: true };
    tool.set_state(call, payment).map(|()| tool)
}

fn payment(number: &str) -> Payment {
    Payment { sum: RawJson::from_text(number).unwrap() }
}

proptest::proptest! {
    /// Any JSON number in the state stays as written, or the state is refused.
    #[test]
    fn any_number_in_a_state_is_kept_or_refused(number in ANY_NUMBER) {
        let call = CallPluginState::new(PluginStates::new());
        let tool = set::<Payment>(&call, &payment(&number));
        let is_finite = number.parse::<f64>().unwrap().is_finite();
        proptest::prop_assert_eq!(tool.is_ok(), is_finite);
        if let Ok(tool) = tool {
            let stored = call.change().unwrap().state.unwrap().value;
            proptest::prop_assert_eq!(stored.text(), format!("{{\"sum\":{number}}}"));
            let read = tool.state::<Payment>(&call).unwrap().unwrap();
            proptest::prop_assert_eq!(read.sum.text(), number);
        }
    }
}

#[test]
fn state_that_its_type_would_round_is_refused() {
    let long = payment("0.1000000000000000055511151231257827");
    let call = CallPluginState::new(PluginStates::new());
    let error = set::<Value>(&call, &long).unwrap_err();
    assert!(error.contains("does not match \"/sum\", or would round a number"), "{error}");
    let error = read_state::<f64>(&long.sum).unwrap_err();
    assert!(error.contains("does not match the whole state, or would"), "{error}");
    assert_eq!(call.change(), None);
    let tool = set::<Payment>(&call, &long).unwrap();
    assert!(tool.state::<Value>(&call).is_err());
    let schema = StateSchema::new::<Payment>("keeper").unwrap();
    let stored = call.change().unwrap().state.unwrap();
    let error = schema.read_state(&keeper::<Payment>(2), &stored).unwrap_err().to_string();
    assert!(error.contains("a number at \"/sum\" that `migrate` would round"), "{error}");
    set::<Value>(&call, &payment("0.1")).unwrap();
}

fn stored(value: &str) -> PluginState {
    PluginState { schema: 1, value: RawJson::from_text(value).unwrap() }
}

#[test]
fn last_of_duplicate_members_of_a_state_counts() {
    let schema = StateSchema::new::<Payment>("keeper").unwrap();
    let state = schema.read_state(&keeper::<Payment>(1), &stored(r#"{"sum":1,"sum":2}"#)).unwrap();
    assert_eq!(state.sum.text(), "2");
}

#[test]
fn state_that_nests_too_deeply_to_read_is_named() {
    let schema = StateSchema::new::<Value>("keeper").unwrap();
    let deep = stored(&format!("{}1{}", "[".repeat(121), "]".repeat(121)));
    for version in [1, 2] {
        let error = schema.read_state(&keeper::<Value>(version), &deep).unwrap_err().to_string();
        assert!(error.contains("nests over 120 levels"), "{error}");
    }
}
