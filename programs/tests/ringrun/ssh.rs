//! Other hosts through ssh itself: a server of the test's own, with keys of its own, at two
//! addresses of this machine. Says `skipped` where there is no server to start.

use crate::job::*;
use crate::skips::skip;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

const SERVER: &str = "/usr/sbin/sshd";

/// Loopback's, by which no name of this machine goes: so ssh is asked.
const HOSTS: [&str; 2] = ["127.0.0.2", "127.0.0.3"];

struct Server {
    process: Child,
    folder: Folder,
    port: u16,
}

impl Server {
    fn start() -> Server {
        let folder = Folder::new("ssh");
        let at = |name: &str| folder.0.join(name).to_str().unwrap().to_string();
        for key in ["host", "key"] {
            let keygen = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)])
                .status();
            assert!(keygen.unwrap().success());
        }
        let free = TcpListener::bind((HOSTS[0], 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let lines = [
            format!("ListenAddress {}:{port}", HOSTS[0]),
            format!("ListenAddress {}:{port}", HOSTS[1]),
            format!("HostKey {}", at("host")),
            format!("AuthorizedKeysFile {}", at("key.pub")),
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no".into(),
            // The folder may be in /tmp, which everybody can write to.
            "StrictModes no\nPidFile none\nPermitRootLogin prohibit-password".into(),
        ];
        std::fs::write(at("config"), lines.join("\n") + "\n").unwrap();
        // A server that root starts wants it; the package's own service makes it.
        let _ = std::fs::create_dir("/run/sshd");
        let process = Command::new(SERVER)
            .args(["-D", "-E", &at("log"), "-f", &at("config")])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        for host in HOSTS {
            wait_until("the server listens", || TcpStream::connect((host, port)).is_ok());
        }
        Server { process, folder, port }
    }

    /// The remote shell, as a user who has a key elsewhere than at home spells it.
    fn shell(&self) -> String {
        let at = |name: &str| self.folder.0.join(name).to_str().unwrap().to_string();
        format!(
            "ssh -F none -p {} -i {} -o BatchMode=yes -o UserKnownHostsFile={} -o \
             StrictHostKeyChecking=accept-new",
            self.port,
            at("key"),
            at("known")
        )
    }

    /// `ringrun -H` of both hosts, two ranks each, with these arguments.
    fn run(&self, arguments: &[&str]) -> Run {
        let hosts = HOSTS.map(|host| format!("{host}:2")).join(",");
        let child = Command::new(env!("CARGO_BIN_EXE_ringrun"))
            .args(["-H", &hosts])
            .args(arguments)
            .env("RINGCOMM_SSH", self.shell())
            .env("RINGCOMM_SOCKET_IFNAME", "lo")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let run = finish(child);
        let log = self.folder.text("log");
        Run { err: format!("{}{log}", run.err), ..run }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_job_and_a_check_run_through_ssh() {
    if !std::path::Path::new(SERVER).exists() {
        let why = format!("there is no {SERVER} (apt-get install openssh-server)");
        return skip(a_job_and_a_check_run_through_ssh, why);
    }
    let server = Server::start();
    // One machine, which the ranks take for two.
    let script = "RINGCOMM_HOSTID=$GROUP_RANK exec \"$0\" all_reduce -b 8 -e 64K -f 64 --probe 0 \
                  --budget 1 -n 4 -w 1";
    let job = server.run(&["-np", "4", "sh", "-c", script, env!("CARGO_BIN_EXE_ring-perf")]);
    let job = job.expect(0);
    assert!(job.out.contains("4 ranks of a launched job"), "{}", job.out);
    let check = server.run(&["--check"]).expect(0);
    assert!(check.out.contains("4 ranks, every pair talks"), "{}", check.out);
    // What a rank ends with comes back, and so does its name.
    let one_fails = "test $RANK = 2 && exit 7; sleep 60";
    server.run(&["-np", "4", "sh", "-c", one_fails]).expect(7).says("rank 2 (host 127.0.0.3");
}
