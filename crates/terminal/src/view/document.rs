//! The cluster as one JSON document, for the console: the objects of `loggos status --json`, with addresses and
//! activity.

use sdk::admin::DiskAttachment;
use serde_json::{Value, json};

use super::{Operation, View, cohort_object, health, node_object, operations};

/// The document as served by node `own` at this time (milliseconds since 1970).
pub fn document(view: &View, own: u32, time_ms: u64) -> Value {
    let (health, problems) = health(view);
    let operations: Vec<Value> = operations(view).iter().map(Operation::object).collect();
    let nodes: Vec<Value> = view.nodes.keys().map(|number| node(view, *number)).collect();
    let cohorts: Vec<Value> = view.cohorts.values().map(|known| cohort(view, known)).collect();
    let activities = || view.nodes.values().filter_map(|node| node.activity.as_ref());
    json!({
        "node": own,
        "time_ms": time_ms,
        "health": health.word(),
        "problems": problems,
        "in_progress": operations,
        "sample_ms": activities().map(|activity| activity.sample_ms).max(),
        "writes_per_second": sum(activities().map(|activity| &*activity.writes_per_second)),
        "reads_per_second": sum(activities().map(|activity| &*activity.reads_per_second)),
        "nodes": nodes,
        "cohorts": cohorts,
        "attachments": view.attachments.iter().map(attachment).collect::<Vec<_>>(),
    })
}

/// A connection of an NBD client, and the node that serves it.
fn attachment((node, attachment): &(u32, DiskAttachment)) -> Value {
    let DiskAttachment { disk, client, holder, since_ns } = attachment;
    json!({ "disk": disk, "holder": holder, "client": client, "node": node, "since_ms": since_ns / 1_000_000 })
}

fn node(view: &View, number: u32) -> Value {
    let node = &view.nodes[&number];
    let mut object = node_object(number, node);
    object["grpc"] = (*node.grpc).into();
    object["answers"] = node.boot.is_some().into();
    if let Some(activity) = &node.activity {
        object["http"] = (*node.http).into();
        object["resident_bytes"] = activity.resident_bytes.into();
        object["requests_per_second"] = activity.requests_per_second.into();
    }
    object
}

fn cohort(view: &View, cohort: &sdk::admin::Cohort) -> Value {
    let mut object = cohort_object(view, cohort);
    object["writes_per_second"] = cohort.writes_per_second.into();
    object["reads_per_second"] = cohort.reads_per_second.into();
    object
}

/// Sums samples taken at about the same times. They are aligned at the newest, since not all series are equally long.
fn sum<'a>(nodes: impl Iterator<Item = &'a [f32]>) -> Vec<f32> {
    let mut sums = Vec::new();
    for samples in nodes {
        if sums.len() < samples.len() {
            sums.resize(samples.len(), 0.0);
        }
        for (sum, sample) in sums.iter_mut().zip(samples.iter().rev()) {
            *sum += sample;
        }
    }
    sums.reverse();
    sums
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answer, replica};
    use super::*;

    #[test]
    fn samples_align_at_newest() {
        let nodes: [&[f32]; 3] = [&[1.0, 2.0, 3.0], &[], &[10.0]];
        assert_eq!(sum(nodes.into_iter()), [1.0, 2.0, 13.0]);
        assert_eq!(sum([].into_iter()), [0.0; 0]);
    }

    #[test]
    fn document_extends_status() {
        let mut told = answer(1, 5, 1, vec![replica(1, 120)]);
        told.activity = Some(sdk::admin::Activity {
            sample_ms: 1_000,
            resident_bytes: 7,
            requests_per_second: 2.0,
            writes_per_second: vec![1.0],
            reads_per_second: vec![4.0],
        });
        let view = View::of(&[told]);
        let said = document(&view, 1, 99);
        assert_eq!((&said["node"], &said["health"]), (&json!(1), &json!("unavailable")));
        let most = "range [\"a\", \"b\") of table t has most replicas on nodes that are down";
        assert_eq!(said["problems"], json!([most, "node 2 is down", "node 3 is down"]));
        assert_eq!(said["in_progress"], json!([]));
        assert_eq!(said["reads_per_second"], json!([4.0]));
        let objects = said["nodes"].as_array().into_iter().chain(said["cohorts"].as_array()).flatten();
        for (object, printed) in objects.zip(view.node_objects().into_iter().chain(view.cohort_objects())) {
            for (key, value) in printed.as_object().expect("an object") {
                assert_eq!(&object[key], value, "{key}");
            }
        }
        assert_eq!((&said["nodes"][0]["http"], &said["nodes"][1]["answers"]), (&json!("h:801"), &json!(false)));
        assert_eq!(said["cohorts"][0]["writes_per_second"], 1.5);
    }
}
