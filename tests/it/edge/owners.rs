//! Tests of ownership: another user's conversation is reported as not found.

use serde_json::json;
use turnwheel::http::api::Access;
use turnwheel::settings::links::Auth;
use turnwheel::store::memory::MemoryStore;
use turnwheel::turn::NoProbe;

use super::rig::Rig;

#[tokio::test]
async fn others_conversations_are_not_there() {
    let rig = Rig::new();
    rig.run("say hello").await;
    for path in ["", "/messages", "/entries", "/prompts", "/events", "/artifacts"] {
        rig.get(&format!("/api/conversations/c{path}"))
            .user("eve", "")
            .send()
            .await
            .fails(404, "not-found");
    }
    let path = "/api/conversations/c";
    rig.post(&format!("{path}/prompts"), &json!({"input": "x"}))
        .user("eve", "")
        .send()
        .await
        .fails(404, "not-found");
    rig.patch(path, &json!({"name": "x"})).user("eve", "").send().await.fails(404, "not-found");
    rig.delete(path).user("eve", "").send().await.fails(404, "not-found");
    rig.get(path).header("turnwheel-tenant", "other").send().await.fails(404, "not-found");
    // Another user may use the same id.
    rig.post("/api/conversations", &json!({"id": "c"})).user("eve", "").send().await.is(201);
}

#[tokio::test]
async fn an_operator_reads_its_tenants_conversations_and_changes_nothing() {
    let rig = Rig::new();
    rig.run("say hello").await;
    let operator = "Turnwheel.Operator";
    let list = rig.get("/api/conversations").user("ops", operator).send().await.is(200).json();
    assert_eq!(list["items"][0]["owner"], json!({"tenantId": "default", "userId": "default"}));
    for path in ["/api/conversations/c/messages", "/api/conversations/c/messages?userId=default"] {
        let read = rig.get(path).user("ops", operator).send().await.is(200).json();
        assert_eq!(read["items"].as_array().unwrap().len(), 2);
    }
    let other =
        rig.get("/api/conversations/c").user("ops", operator).header("turnwheel-tenant", "other");
    other.send().await.fails(404, "not-found");
    rig.post("/api/prompts", &json!({"input": "x"}))
        .user("ops", operator)
        .send()
        .await
        .fails(403, "forbidden");
    rig.delete("/api/conversations/c").user("ops", operator).send().await.fails(403, "forbidden");
}

#[tokio::test]
async fn without_the_platforms_sign_in_nobody_is_believed() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let rig = Rig::behind(
        store,
        std::sync::Arc::new(NoProbe),
        Access { auth: Auth::SignIn, ..Access::dev() },
    );
    rig.get("/api/conversations")
        .header("x-ms-client-principal", "e30=")
        .send()
        .await
        .fails(401, "unauthorized");
    rig.get("/api/health").send().await.is(200);
}

#[tokio::test]
async fn lists_go_on_where_they_ended() {
    let rig = Rig::new();
    for number in 0..5 {
        rig.clock.advance(std::time::Duration::from_secs(1));
        rig.post("/api/conversations", &json!({"id": format!("c{number}")})).send().await.is(201);
    }
    let mut seen = Vec::new();
    let mut path = "/api/conversations?limit=2".to_owned();
    loop {
        let page = rig.get(&path).send().await.is(200);
        seen.extend(
            page.json()["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) =
            page.header("link").strip_prefix('<').and_then(|link| link.split('>').next())
        else {
            break;
        };
        path = next.to_owned();
    }
    assert_eq!(seen, ["c4", "c3", "c2", "c1", "c0"]);
    let first = rig.seen("/api/conversations?limit=2").await;
    let continuation = first["continuation"].as_str().unwrap();
    let stolen = format!("/api/conversations?limit=2&continuation={continuation}");
    rig.get(&stolen).user("eve", "").send().await.fails(400, "bad-request");
}
