//! Budget alerts of a transition: for limits that the head stores, and for accounts in the ledger.

use crate::agent::budget::{AccountAlert, AlertMark, Crossing, Level};
use crate::agent::draft::Draft;
use crate::agent::usage::Tally;

/// Issues alerts for the limits of prompt and conversation. The usage already includes `cost`.
pub(super) fn issue(draft: &mut Draft, cost: &Tally) {
    let Some(budget) = draft.rules.budget else { return };
    let mut alerts = Vec::new();
    if let (Some(limit), Some(run)) = (budget.prompt, &mut draft.head.prompt) {
        let crossings = limit.crossings(&run.raised, &run.alert_marks, &run.spent(), cost);
        set_marks(&mut run.alert_marks, &crossings);
        let id = run.id.as_str();
        alerts.extend(crossings.iter().map(|crossing| crossing.alert(Level::Prompt, id)));
    }
    if let Some(limit) = budget.conversation {
        let used = draft.head.spent();
        let books = &mut draft.head.books;
        let crossings = limit.crossings(&books.raised, &books.alert_marks, &used, cost);
        set_marks(&mut books.alert_marks, &crossings);
        let id = draft.head.conversation_id.as_str();
        alerts.extend(crossings.iter().map(|crossing| crossing.alert(Level::Conversation, id)));
    }
    for alert in alerts {
        draft.head.books.own_alerts += 1;
        let number = format!("alert{}", draft.head.books.own_alerts);
        draft.issue_alert(alert, &number);
    }
}

fn set_marks(marks: &mut Vec<AlertMark>, crossings: &[Crossing]) {
    marks.retain(|mark| crossings.iter().all(|crossing| crossing.unit != mark.unit));
    marks.extend(crossings.iter().map(Crossing::mark));
}

/// Issues alerts of accounts, each once: the head stores the number of the newest one.
pub(super) fn issue_of_accounts(draft: &mut Draft, alerts: &[AccountAlert]) {
    for AccountAlert { number, alert } in alerts {
        if *number > draft.head.books.account_alerts {
            draft.head.books.account_alerts = *number;
            draft.issue_alert(alert.clone(), &format!("account{number}"));
        }
    }
}
