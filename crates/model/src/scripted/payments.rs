//! The payments example: `Pay 250 to Ada` becomes a call of the payment tool and then a sentence
//! about its result.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Number;

use crate::ToolOffer;
use crate::scripted::script::ScriptedCall;
use crate::scripted::{ScriptedResponse, quote};
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::message::ToolResultMessage;
use turnwheel_json::raw::RawJson;

const CURRENCY: &str = r"(?:dollars?|usd|euros?|eur|pounds?|gbp|[$€£])";

static AMOUNT_FIRST: LazyLock<Option<Regex>> = LazyLock::new(|| {
    compile_pattern(
        r"\b(?:pay|send|transfer|and)\s+CUR?\s*(?<amount>NUM)\s*CUR?\s+to\s+(?<payee>NAME)",
    )
});
static PAYEE_FIRST: LazyLock<Option<Regex>> = LazyLock::new(|| {
    compile_pattern(r"\b(?:pay|send|and)\s+(?<payee>NAME)\s+CUR?\s*(?<amount>NUM)\b")
});

fn compile_pattern(template: &str) -> Option<Regex> {
    let full = template
        .replace("CUR", CURRENCY)
        .replace("NUM", r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
        // Further words belong to a name if they begin with a capital.
        .replace(
            "NAME",
            r"\p{L}[\p{L}\p{N}_-]*(?:[.@][\p{L}\p{N}_-]+)*(?:\ (?-i:\p{Lu})[\p{L}-]+)*",
        );
    Regex::new(&format!("(?i){full}")).ok()
}

pub(super) struct ScriptedPayment {
    tool: String,
    /// Names of the tool's arguments for payee and amount.
    payee_argument: String,
    amount_argument: String,
    payee: String,
    amount: String,
}

/// Parses the payments of a text. Empty if no tool pays or the text has no payment.
pub(super) fn parse_payments(text: &str, tools: &[ToolOffer<'_>]) -> Vec<ScriptedPayment> {
    let Some((tool, to, sum)) = tools.iter().find_map(find_payment_tool) else { return Vec::new() };
    [&AMOUNT_FIRST, &PAYEE_FIRST]
        .into_iter()
        .filter_map(|pattern| pattern.as_ref())
        .map(|pattern| {
            let payments = pattern.captures_iter(text).filter_map(|found| {
                Some(ScriptedPayment {
                    tool: tool.clone(),
                    payee_argument: to.clone(),
                    amount_argument: sum.clone(),
                    payee: found.name("payee")?.as_str().to_owned(),
                    amount: found.name("amount")?.as_str().replace(',', ""),
                })
            });
            payments.collect::<Vec<_>>()
        })
        .find(|payments| !payments.is_empty())
        .unwrap_or_default()
}

pub(super) fn request_payments(payments: &[ScriptedPayment]) -> ScriptedResponse {
    let text = match payments {
        [one] => format!("I will pay {} to {}.", one.amount, one.payee),
        many => format!("I will make {} payments.", many.len()),
    };
    ScriptedResponse { text, calls: payments.iter().map(ScriptedPayment::to_call).collect() }
}

/// Reports each payment in one sentence.
pub(super) fn report_payments(
    payments: &[ScriptedPayment],
    results: &[&ToolResultMessage],
) -> String {
    let lines: Vec<String> = payments
        .iter()
        .zip(results)
        .map(|(payment, result)| payment.describe_result(result))
        .collect();
    lines.join("\n")
}

impl ScriptedPayment {
    fn to_call(&self) -> ScriptedCall {
        let amount = RawJson::from_text(self.amount.as_str())
            .unwrap_or_else(|_| RawJson::from_value(&self.amount));
        let arguments = RawJson::from_members(vec![
            (self.payee_argument.clone(), RawJson::from_value(&self.payee)),
            (self.amount_argument.clone(), amount),
        ]);
        ScriptedCall { tool: self.tool.clone(), arguments }
    }

    fn describe_result(&self, result: &ToolResultMessage) -> String {
        let Self { payee, amount, .. } = self;
        let text = joined_text(&result.content);
        let said = quote(&text);
        if text.to_lowercase().contains("unknown") {
            return format!("The outcome of the payment of {amount} to {payee} is unknown: {said}");
        }
        if result.is_error {
            return format!("The payment of {amount} to {payee} was not made: {said}");
        }
        let json =
            result.structured_content.clone().or_else(|| RawJson::from_text(text.as_str()).ok());
        match json.as_ref().and_then(find_receipt) {
            Some(receipt) => format!("Paid {amount} to {payee}. The receipt is {receipt}."),
            None if said.is_empty() => format!("Paid {amount} to {payee}."),
            None => format!("Paid {amount} to {payee}: {said}"),
        }
    }
}

fn find_receipt(json: &RawJson) -> Option<String> {
    let members = json.members()?;
    let names =
        ["receipt", "receiptId", "receipt_id", "reference", "paymentId", "payment_id", "id"];
    names.iter().find_map(|name| {
        let (_, value) = members.iter().rev().find(|(member, _)| member == name)?;
        if value.read::<Number>().is_ok() {
            return Some(value.text().to_owned());
        }
        value.read::<String>().ok().or_else(|| value.string_member("id"))
    })
}

/// Returns the names of the tool and of its arguments for payee and amount.
fn find_payment_tool(tool: &ToolOffer<'_>) -> Option<(String, String, String)> {
    if !tool.name.to_lowercase().contains("pay") {
        return None;
    }
    let properties = tool.parameters.get("properties")?.as_object()?;
    let first = |names: &[&str]| {
        names.iter().find(|name| properties.contains_key(**name)).map(|name| (*name).to_owned())
    };
    let to = first(&["to", "payee", "recipient", "name", "account"])?;
    let sum = first(&["amount", "sum", "value"])?;
    Some((tool.name.to_owned(), to, sum))
}
