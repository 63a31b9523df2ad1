//! Real processes: a test binary starts itself again with one of its `child_*` tests, which does
//! nothing unless told so by the environment.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::eventually;

/// The environment variable that makes a `child_*` test act; its value is the socket's path.
pub const ROLE: &str = "KEEPWARM_TEST_CHILD";

/// What this process is to be, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A process that is killed when dropped.
pub struct Process(pub Child);

impl Process {
    /// Starts this binary's test `name`.
    pub fn start(name: &str, value: &Path) -> Process {
        let this = std::env::current_exe().expect("this binary");
        let child = Command::new(this)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(ROLE, value)
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        Process(child)
    }

    /// Starts a node as this binary's test `name` and waits until it listens.
    pub fn node(name: &str, path: &Path) -> Process {
        let process = Process::start(name, path);
        eventually("the child listens", Duration::from_secs(20), || {
            std::os::unix::net::UnixStream::connect(path).is_ok()
        });
        process
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        if signal == "-STOP" {
            // The signal has been sent, but threads still run until it reaches each of them.
            let tasks = format!("/proc/{}/task", self.0.id());
            eventually("every thread stops", Duration::from_secs(20), || {
                let tasks = std::fs::read_dir(&tasks).expect("the child is there");
                tasks.flatten().all(|task| {
                    let stat = std::fs::read_to_string(task.path().join("stat"));
                    stat.is_ok_and(|stat| stat.contains(") T "))
                })
            });
        }
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process does not notice a termination, but this one it does.
        self.kill();
    }
}
