//! Runs of the SQL workload.

use std::time::Duration;

use crate::campaign;
use crate::world::Theme;

/// SQL transactions under all kinds of fault. `SQL_SEEDS` asks for another number of seeds.
#[test]
fn sql_campaign_passes() {
    let asked = std::env::var("SQL_SEEDS").ok().and_then(|number| number.parse().ok());
    let seeds = Theme::Sql.seeds().take(asked.unwrap_or(12));
    let campaign = campaign::campaign(seeds, Duration::MAX, |_| {});
    println!("{:#?} in {:?}", campaign.counters, campaign.elapsed);
    assert_eq!(campaign.failure, None, "loggos sim --seed N");
    for what in [
        "SQL appends",
        "SQL audits",
        "SQL families",
        "SQL index pages",
        "SQL schema changes",
        "SQL snapshots",
        "SQL transactions rolled back",
        "SQL transfers",
        "schemas refreshed",
    ] {
        assert!(campaign.counters.contains_key(what), "{what} never happened: {:?}", campaign.counters);
    }
}

#[cfg(feature = "canary")]
#[test]
fn sql_bugs_are_found() {
    use base::canary::Bug;

    for bug in Bug::ALL.iter().copied().filter(|bug| bug.guarantee() == 30) {
        let catch = campaign::catch_bug(bug, crate::SEARCH_LIMIT);
        println!("{:<28} {:?} after {} seeds, {:?}", bug.name(), catch.found, catch.seeds, catch.elapsed);
        assert!(catch.found.is_some(), "{} escapes", bug.name());
    }
}
