//! What becomes of calls where a process can open no more descriptors: an error that says so, and
//! nothing that was sent is lost.

mod support;

use ringcomm::communicator::{Call, Communicator, Message};
use ringcomm::config::Config;
use ringcomm::error::Result;
use ringcomm::plan::Collective;
use ringcomm::transport::shm_export::{self, Mailbox, MailboxSender};
use ringcomm::types::DataType;
use support::holdings::set_descriptors;
use support::on_processes;

/// Longer than any slot, so that it is moved from where it lies.
const BYTES: usize = 1 << 20;

/// All-reduce between two such buffers, or send a message from one to the other.
fn moved(comm: &Communicator, how: &str, [send, recv]: [*mut u8; 2]) -> Result<()> {
    let (count, data_type, peer) = (BYTES, DataType::Uint8, 1 - comm.rank());
    // SAFETY: both buffers have that many bytes.
    unsafe {
        match (how, comm.rank()) {
            ("collective", _) => {
                let call = Call::new(Collective::AllReduce, data_type);
                comm.run(&Call { send, recv, count, ..call })
            }
            (_, 0) => comm.exchange(&[Message::Send { buffer: send, count, data_type, peer }]),
            _ => comm.exchange(&[Message::Recv { buffer: recv, count, data_type, peer }]),
        }
    }
}

fn buffers() -> [*mut u8; 2] {
    [0, 1].map(|_| shm_export::allocate(BYTES).unwrap())
}

#[test]
fn who_cannot_take_a_peers_memory_says_what_it_lacks() {
    for how in ["collective", "message"] {
        let config = Config { algorithm: Some("twoshot".into()), ..Config::default() };
        let ends = on_processes(2, &config, how, |comm, how| {
            let mut own = buffers();
            moved(comm, how, own).unwrap();
            if comm.rank() == 0 {
                own = buffers();
            } else {
                set_descriptors(Some(3));
            }
            let outcome = moved(comm, how, own);
            set_descriptors(None);
            outcome.expect_err("rank 1 reaches rank 0's memory").to_string()
        });
        let wanted = "rank 1 cannot reach the memory of rank 0: taking a descriptor";
        for end in &ends {
            assert!(end.contains(wanted) && end.contains("ulimit -n"), "{how}: {end}");
            assert!(!end.contains("defect"), "{how}: {end}");
        }
    }
}

#[test]
fn a_message_waits_until_there_is_room_for_its_descriptors() {
    on_processes(1, &Config::default(), "", |_, _| {
        let address = shm_export::allocate(1).unwrap();
        let region = shm_export::find(address, 1).unwrap().region;
        let (mailbox, sender) = Mailbox::pair().unwrap();
        let sender = MailboxSender::new(sender);
        (0..2).for_each(|_| sender.send(region).unwrap());
        set_descriptors(Some(3));
        for _ in 0..3 {
            let text = mailbox.receive().unwrap_err().to_string();
            assert!(text.contains("ulimit -n"), "{text}");
        }
        set_descriptors(None);
        for _ in 0..2 {
            assert_eq!(mailbox.receive().unwrap().unwrap().region().unwrap().0, region);
        }
        assert!(mailbox.receive().unwrap().is_none());
        String::new()
    });
}
