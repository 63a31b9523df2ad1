//! A socket whose name is deleted or taken over while its node serves.

mod support;

use std::os::unix::net::UnixListener;
use std::time::Duration;

use keepwarm_store::types::GetOutcome;
use support::{Node, SECOND, attach, connect, eventually, get, keys, put};

/// The watch looks once a second.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_deleted_socket_is_bound_again_and_no_block_is_lost() {
    let mut node = Node::start(16);
    let memory = node.connect();
    let space = attach(&memory, "m");
    let keys = keys(1, 4);
    put(&space, &keys, 4096, SECOND);
    std::fs::remove_file(&node.path).unwrap();
    eventually("the socket is back", SOON, || node.path.exists());
    let late = node.connect();
    let found = get(&attach(&late, "m"), &keys, 4096, SECOND);
    assert!(found.iter().all(|outcome| matches!(outcome, GetOutcome::Ok)), "{found:?}");
    let still = get(&space, &keys, 4096, SECOND);
    assert!(
        still.iter().all(|outcome| matches!(outcome, GetOutcome::Ok)),
        "old connections go on: {still:?}"
    );
    assert_eq!(node.server.as_ref().unwrap().lost(), None);
    node.server.take().unwrap().stop();
    assert!(!node.path.exists(), "the new name goes with the server");
}

#[test]
fn a_dead_socket_in_its_place_is_replaced() {
    let node = Node::start(16);
    std::fs::remove_file(&node.path).unwrap();
    drop(UnixListener::bind(&node.path).unwrap());
    eventually("the node answers at its path", SOON, || connect(&node.path).stat(SECOND).is_ok());
}

#[test]
fn a_live_stranger_in_its_place_means_the_node_is_lost() {
    let node = Node::start(16);
    let memory = node.connect();
    memory.stat(SECOND).unwrap();
    std::fs::remove_file(&node.path).unwrap();
    let _stranger = UnixListener::bind(&node.path).unwrap();
    let server = node.server.as_ref().unwrap();
    eventually("the node says that it is lost", SOON, || server.lost().is_some());
    let why = server.lost().unwrap();
    assert!(why.contains("in use by pid"), "{why}");
    assert!(memory.stat(SECOND).is_ok(), "who is connected is served until the drain");
}

#[test]
fn a_folder_that_is_gone_is_given_some_time() {
    let node = Node::start(16);
    let folder = node.path.parent().unwrap();
    std::fs::remove_file(&node.path).unwrap();
    std::fs::remove_dir(folder).unwrap();
    let server = node.server.as_ref().unwrap();
    eventually("the node says that it is lost", SOON, || server.lost().is_some());
    assert!(server.lost().unwrap().contains("No such file"), "{:?}", server.lost());
    std::fs::create_dir(folder).unwrap();
}
