//! Budget alerts of a transition: for limits that the head stores, and for accounts in the ledger.

use crate::budget::{AccountAlert, AlertMark, BudgetLevel, Crossing};
use crate::transition::Transition;
use crate::usage::UsageTotals;

/// Issues alerts for the limits of prompt and conversation. The usage already includes `cost`.
pub(super) fn issue_own_alerts(transition: &mut Transition, cost: &UsageTotals) {
    let Some(budget) = transition.policy.budget else { return };
    let mut alerts = Vec::new();
    if let (Some(limit), Some(run)) = (budget.prompt, &mut transition.head.prompt) {
        let crossings = limit.crossings(&run.increases, &run.alert_marks, &run.spent(), cost);
        set_marks(&mut run.alert_marks, &crossings);
        let id = run.id.as_str();
        alerts.extend(crossings.iter().map(|crossing| crossing.alert(BudgetLevel::Prompt, id)));
    }
    if let Some(limit) = budget.conversation {
        let used = transition.head.spent();
        let metering = &mut transition.head.metering;
        let crossings = limit.crossings(&metering.increases, &metering.alert_marks, &used, cost);
        set_marks(&mut metering.alert_marks, &crossings);
        let id = transition.head.conversation_id.as_str();
        alerts
            .extend(crossings.iter().map(|crossing| crossing.alert(BudgetLevel::Conversation, id)));
    }
    for alert in alerts {
        transition.head.metering.own_alerts += 1;
        let number = format!("alert{}", transition.head.metering.own_alerts);
        transition.issue_alert(alert, &number);
    }
}

fn set_marks(marks: &mut Vec<AlertMark>, crossings: &[Crossing]) {
    marks.retain(|mark| crossings.iter().all(|crossing| crossing.unit != mark.unit));
    marks.extend(crossings.iter().map(Crossing::mark));
}

/// Issues alerts of accounts, each once: the head stores the number of the newest one.
pub(super) fn issue_account_alerts(transition: &mut Transition, alerts: &[AccountAlert]) {
    for AccountAlert { number, alert } in alerts {
        if *number > transition.head.metering.account_alerts {
            transition.head.metering.account_alerts = *number;
            transition.issue_alert(alert.clone(), &format!("account{number}"));
        }
    }
}
