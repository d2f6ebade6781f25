use super::*;

fn list(acls: &[Acl], ids: &[Id]) -> Result<Vec<Acl>, ErrorCode> {
    let records: Vec<AclRecord<'_>> = acls.iter().map(Acl::record).collect();
    resolve(Sequence::of(&records), ids)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn sha1_rfc_vectors() {
    assert_eq!(hex(&sha1::sha1(b"abc")), "a9993e364706816aba3e25717850c26c9cd0d89d");
    assert_eq!(hex(&sha1::sha1(b"")), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    assert_eq!(hex(&sha1::sha1(two_blocks)), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    assert_eq!(hex(&sha1::sha1(&[b'a'; 1_000_000])), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

/// The example of ZooKeeper's documentation of the super user.
#[test]
fn digest_matches_zookeeper() {
    assert_eq!(digest("super:test"), "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
}

#[test]
fn authentication_schemes() {
    let address = "10.1.2.3".parse().unwrap();
    let super_digest = digest("super:test");
    let as_super = authenticate("digest", b"super:test", address, Some(&super_digest)).unwrap();
    assert_eq!(as_super, [Id::new("super", ""), Id::new("digest", &super_digest)]);
    let user = authenticate("digest", b"joe:secret", address, Some(&super_digest)).unwrap();
    assert_eq!(user, [Id::new("digest", &digest("joe:secret"))]);
    assert_eq!(authenticate("ip", b"", address, None).unwrap(), [Id::new("ip", "10.1.2.3")]);
    assert_eq!(authenticate("world", b"anyone", address, None), None);
    assert_eq!(authenticate("nonsense", b"", address, None), None);
}

#[test]
fn addresses_use_java_format() {
    for (address, id) in [("10.1.2.3", "10.1.2.3"), ("::1", "0:0:0:0:0:0:0:1"), ("::ffff:10.1.2.3", "10.1.2.3")] {
        assert_eq!(Id::of_address(address.parse().unwrap()), Id::new("ip", id));
    }
}

#[test]
fn permissions_depend_on_identity() {
    let acl = [
        Acl { perms: perms::READ, id: Id::new("ip", "10.1.0.0/16") },
        Acl { perms: perms::WRITE, id: Id::new("digest", "joe:abc") },
    ];
    let near = Id::new("ip", "10.1.2.3");
    let far = Id::new("ip", "10.2.2.3");
    assert!(permits(&acl, perms::READ, std::slice::from_ref(&near)));
    assert!(permits(&acl, perms::READ | perms::ADMIN, std::slice::from_ref(&near)));
    assert!(!permits(&acl, perms::READ, std::slice::from_ref(&far)));
    assert!(!permits(&acl, perms::WRITE, std::slice::from_ref(&near)));
    assert!(permits(&acl, perms::WRITE, &[far.clone(), Id::new("digest", "joe:abc")]));
    assert!(!permits(&acl, perms::WRITE, &[Id::new("sasl", "joe:abc")]));
    assert!(permits(&acl, perms::DELETE, &[far, Id::new("super", "")]));
    assert!(permits(&[], perms::DELETE, &[]));
    assert!(permits(&[Acl::world(perms::CREATE)], perms::CREATE, &[]));
}

#[test]
fn ip_address_ranges() {
    for (id, range, expected) in [
        ("127.0.0.1", "127.0.0.1", true),
        ("127.0.0.1", "127.0.0.2", false),
        ("127.0.0.1", "0.0.0.0/0", true),
        ("10.0.0.129", "10.0.0.128/25", true),
        ("10.0.0.127", "10.0.0.128/25", false),
        ("::1", "::1", true),
        ("fe80::1", "fe80::/10", true),
        ("fe80::1", "::/0", true),
        ("127.0.0.1", "::/0", false),
    ] {
        assert_eq!(ip::matches(id, range), expected, "{id} in {range}");
    }
    for invalid in ["", "127.0.0", "127.0.0.1/33", "127.0.0.1/-1", "127.0.0.1/x", "::1/129", "host", "256.0.0.1"] {
        assert!(!ip::is_valid(invalid), "{invalid}");
    }
}

#[test]
fn resolves_requested_acls() {
    let world = Acl::world(perms::ALL);
    let ids = [Id::new("ip", "10.0.0.1"), Id::new("digest", "joe:abc"), Id::new("super", "")];
    assert_eq!(list(&[], &ids), Err(ErrorCode::InvalidAcl));
    assert_eq!(list(&[world.clone(), world.clone()], &ids).unwrap(), [world]);
    let auth = Acl { perms: perms::READ, id: Id::new("auth", "ignored") };
    let joe = Acl { perms: perms::READ, id: Id::new("digest", "joe:abc") };
    assert_eq!(list(std::slice::from_ref(&auth), &ids).unwrap(), [joe]);
    assert_eq!(list(&[auth], &ids[..1]), Err(ErrorCode::InvalidAcl));
    for (scheme, id, is_valid) in [
        ("world", "nobody", false),
        ("digest", "joe", false),
        ("digest", "joe:", false),
        ("digest", ":x", true),
        ("digest", "joe:x:y", false),
        ("ip", "10.0.0.0/8", true),
        ("ip", "localhost", false),
        ("sasl", "joe", false),
        ("super", "", false),
        ("nonsense", "joe", false),
    ] {
        let acl = Acl { perms: perms::READ, id: Id::new(scheme, id) };
        assert_eq!(list(&[acl], &ids).is_ok(), is_valid, "{scheme}:{id}");
    }
    let null = AclRecord { perms: 1, id: IdRecord { scheme: None, id: None } };
    assert_eq!(resolve(Sequence::of(&[null]), &ids), Err(ErrorCode::InvalidAcl));
}

#[test]
fn masks_digests() {
    let of = |scheme, id| Acl { perms: perms::ALL, id: Id::new(scheme, id) };
    assert_eq!(masked(&of("digest", "joe:abc=")), of("digest", "joe:x"));
    assert_eq!(masked(&of("ip", "::1")), of("ip", "::1"));
}

/// Each entry with scheme `auth` stands for all identities of the client.
#[test]
fn rejects_long_acl_lists() {
    let ids: Vec<Id> = (0..60).map(|number| Id::new("digest", &format!("user{number}:{:028}", 0))).collect();
    let auth = |perms| Acl { perms, id: Id::new("auth", "") };
    assert_eq!(list(&[auth(1)], &ids).unwrap().len(), 60);
    let many: Vec<Acl> = (0..40_000).map(auth).collect();
    assert_eq!(list(&many, &ids), Err(ErrorCode::InvalidAcl));
    let same: Vec<Acl> = (0..40_000).map(|_| auth(1)).collect();
    assert_eq!(list(&same, &ids).unwrap().len(), 60);
    let plain: Vec<Acl> = (0..40_000).map(Acl::world).collect();
    assert_eq!(list(&plain, &ids), Err(ErrorCode::InvalidAcl));
    assert_eq!(list(&plain[..500], &ids).unwrap().len(), 500);
}
