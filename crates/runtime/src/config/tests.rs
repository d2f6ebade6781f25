use super::*;

const GOOD: &str = "node = 1\ndata = \"d\"\n[listen]\npeers = \"127.0.0.1:7101\"\ngrpc = \"[::1]:7201\"\n";

fn read(text: &str) -> Result<Config, String> {
    let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
    config.check().and_then(|()| config.check_reachable()).map_err(|error| error.to_string())?;
    Ok(config)
}

fn refusal(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    read(&GOOD.replace(from, to)).unwrap_err()
}

#[test]
fn minimal_config() {
    let config = read(GOOD).unwrap();
    assert!(!config.insecure_plaintext && config.peers.is_empty());
}

#[test]
fn rejects_unknown_keys() {
    assert!(refusal("node = 1", "node = 1\nnoed = 2").contains("noed"));
    assert!(read(&format!("{GOOD}\n[tuning]\nlease = 3\n")).unwrap_err().contains("lease"));
}

#[test]
fn public_listen_requires_insecure_plaintext() {
    let refused = refusal("127.0.0.1:7101", "0.0.0.0:7101");
    assert!(refused.contains("insecure_plaintext = true") && refused.contains("0.0.0.0:7101"), "{refused}");
    assert!(refusal("[::1]:7201", "10.0.0.1:7201").contains("listen.grpc"));
    assert!(read(&format!("{GOOD}http = \"0.0.0.0:8081\"\n")).unwrap_err().contains("listen.http"));
    assert!(read(&format!("{GOOD}http = \"127.0.0.1:8081\"\n")).is_ok());
    assert!(read(&format!("{GOOD}nbd = \"0.0.0.0:10809\"\n")).unwrap_err().contains("listen.nbd"));
    assert!(read(&format!("{GOOD}zookeeper = \"0.0.0.0:2181\"\n")).unwrap_err().contains("listen.zookeeper"));
    let said = GOOD.replace("node = 1", "node = 1\ninsecure_plaintext = true").replace("127.0.0.1", "10.0.0.1");
    assert!(read(&said).is_ok());
}

#[test]
fn sql_connections_are_limited() {
    let sql = |line: &str| read(&format!("{GOOD}[sql]\n{line}\n"));
    assert_eq!(sql("").unwrap().sql.connections().unwrap(), 250);
    assert_eq!(sql("connections = 5000").unwrap().sql.connections().unwrap(), 5_000);
    for wrong in ["0", "5001"] {
        assert!(sql(&format!("connections = {wrong}")).unwrap_err().starts_with("sql.connections: "), "{wrong}");
    }
}

#[test]
fn clock_source_depends_on_addresses() {
    let source = |text: &str| read(text).unwrap().clock_source().unwrap();
    let with = |line: &str| GOOD.replace("node = 1", &format!("node = 1\n{line}"));
    assert_eq!(source(GOOD), Source::Host);
    let peer =
        |host: &str| format!("{GOOD}[[peers]]\nnode = 2\naddress = \"{host}:7102\"\ngrpc = \"127.0.0.1:7202\"\n");
    assert_eq!([source(&peer("localhost")), source(&peer("node-2"))], [Source::Host, Source::Kernel]);
    let public = with("insecure_plaintext = true").replace("127.0.0.1", "10.0.0.1");
    assert_eq!(source(&public), Source::Kernel, "other machines may join");
    assert_eq!(source(&with("clock = \"kernel\"")), Source::Kernel);
    assert_eq!(source(&with("clock = \"none\"")), Source::None);
    let of = |text: &str| with(&format!("clock = \"configured\"\nclock_uncertainty = \"{text}\""));
    assert_eq!(source(&of("500us")), Source::Configured(base::Duration::from_micros(500)));
    assert_eq!(source(&of("250ms")), Source::Configured(base::Duration::from_millis(250)));
    for wrong in ["500", "0us", "251ms", "1s", "5m", "us", "99999999999999999999s", "-1ms"] {
        assert!(read(&of(wrong)).unwrap_err().starts_with("clock_uncertainty: "), "{wrong}");
    }
}

#[test]
fn clock_settings_are_checked() {
    let refused = |line: &str| refusal("node = 1", &format!("node = 1\n{line}"));
    assert!(refused("clock = \"ntp\"").contains("configured"), "the message lists the values");
    assert!(refused("clock = \"configured\"").starts_with("clock_uncertainty: "));
    assert!(refused("clock_uncertainty = \"1ms\"").contains("requires clock = \"configured\""));
    assert!(refused("clock_uncertainty_max = \"999us\"").contains("is not within 1ms to 250ms"));
    let most = |text: &str| read(text).unwrap().clock_uncertainty_max().unwrap().as_millis();
    let set = GOOD.replace("node = 1", "node = 1\nclock_uncertainty_max = \"10ms\"");
    assert_eq!([most(GOOD), most(&set)], [250, 10]);
}

#[test]
fn nbd_settings_are_checked() {
    let nbd = |lines: &str| read(&format!("{GOOD}[nbd]\n{lines}\n")).map(|config| config.nbd);
    assert_eq!(nbd("").unwrap(), Nbd::default());
    let set = nbd("reads = \"primary\"\nread_only = true\npatience = \"30s\"").unwrap();
    assert_eq!((set.reads, set.read_only), (Some(DiskReads::Primary), Some(true)));
    assert_eq!(set.patience().unwrap(), Some(base::Duration::from_millis(30_000)));
    assert!(nbd("reads = \"leader\"").unwrap_err().contains("primary"), "the message lists the values");
    for wrong in ["999ms", "2d", "10", "", "-1s"] {
        let refused = nbd(&format!("patience = \"{wrong}\"")).unwrap_err();
        assert!(refused.starts_with("nbd.patience: "), "{wrong}: {refused}");
    }
}

#[test]
fn wildcard_listen_requires_advertised_address() {
    let everywhere = GOOD
        .replace("node = 1", "node = 1\ninsecure_plaintext = true")
        .replace("127.0.0.1", "0.0.0.0")
        .replace("::1", "::");
    let refused = read(&everywhere).unwrap_err();
    assert!(refused.starts_with("advertise.peers: other nodes can't connect to 0.0.0.0:7101"), "{refused}");
    let half = format!("{everywhere}[advertise]\npeers = \"node-1:7101\"\n");
    assert!(read(&half).unwrap_err().starts_with("advertise.grpc: clients can't connect to [::]:7201"));
    let config = read(&format!("{half}grpc = \"node-1:7201\"\n")).unwrap();
    assert_eq!(config.own_addresses().0.to_string(), "node-1:7101");
    let listed = "[[peers]]\nnode = 1\naddress = \"a:1\"\ngrpc = \"a:2\"\n";
    assert_eq!(read(&format!("{everywhere}{listed}")).unwrap().own_addresses().1.to_string(), "a:2");
}

#[test]
fn names_are_valid_addresses() {
    let config = read(&GOOD.replace("127.0.0.1", "localhost")).unwrap();
    assert_eq!(config.listen.peers.to_string(), "localhost:7101");
    assert!(refusal("127.0.0.1:7101", "node-1:7101").contains("insecure_plaintext"));
    assert!(refusal("127.0.0.1:7101", "localhost").contains("HOST:PORT"));
    let text = toml::to_string(&config).unwrap();
    assert_eq!(read(&text).unwrap().listen.grpc.to_string(), "[::1]:7201");
}

#[test]
fn parses_memory_sizes() {
    assert_eq!(memory_size("512MiB"), Ok(512 << 20));
    assert_eq!(memory_size("33554432"), Ok(32 << 20));
    assert!(memory_size("1MiB").unwrap_err().contains("32MiB to 1024GiB"));
    for wrong in ["", "MiB", "5MB", "-1GiB", "99999999999999999999GiB", "1 GiB"] {
        assert!(memory_size(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn rejects_out_of_range_values() {
    assert!(refusal("node = 1", "node = 0").contains("1 to 65535"));
    assert!(read(&format!("{GOOD}[tuning]\nheartbeat_ms = 500\n")).unwrap_err().contains("5 to 100"));
    let tuned = |line: &str| read(&format!("{GOOD}[tuning]\n{line}\n"));
    assert!(tuned("commit_period_ms = 0").unwrap_err().contains("1 to 15000"));
    assert!(tuned("client_memory_bytes = 1048576").unwrap_err().contains("134217728"));
    assert!(tuned("commit_period_ms = 15000\npiggyback_commits = false").is_ok());
    assert!(refusal("node = 1", "node = 1\ncluster = \"xyz\"").contains("32 hexadecimal"));
    let twice = "[[peers]]\nnode = 2\naddress = \"127.0.0.1:1\"\ngrpc = \"127.0.0.1:2\"\n".repeat(2);
    assert!(read(&format!("{GOOD}{twice}")).unwrap_err().contains("twice"));
    let own = "[[peers]]\nnode = 1\naddress = \"127.0.0.1:1\"\ngrpc = \"127.0.0.1:2\"\n";
    assert!(read(&format!("{GOOD}{own}")).unwrap_err().contains("node 1 is this node"));
    let both = format!("{GOOD}http = \"127.0.0.1:7101\"\n");
    assert!(read(&both).unwrap_err().contains("peers and http have the same address"));
    let digest = |text: &str| read(&format!("{GOOD}[zookeeper]\nsuper_digest = \"{text}\"\n"));
    assert!(digest("super:D/InIHSb7yEEbrWz8b9l71RjZJU=").is_ok());
    for wrong in ["foo", "super:secret", "admin:D/InIHSb7yEEbrWz8b9l71RjZJU="] {
        assert!(digest(wrong).unwrap_err().contains("zookeeper.super_digest"), "{wrong}");
    }
}
