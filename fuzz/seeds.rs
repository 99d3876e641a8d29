//! Writes `corpus/TARGET/seed-*`: what the library itself encodes, for the fuzzer to start from.
//!
//! Every run writes the same files, but for an id, whose secret is drawn. What the fuzzer found
//! beside them has other names and stays.

use ringcomm::algorithm::Algorithm;
use ringcomm::algorithm::select::Costs;
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::allgather::{AllgatherMessage, PeerId};
use ringcomm::bootstrap::local::wire::{
    self as rendezvous_wire, Challenge, Failure, FrameHeader, FrameKind, LocalHello,
};
use ringcomm::communicator::call::signature::CallSignature;
use ringcomm::communicator::control_plane::frame::Item;
use ringcomm::communicator::control_plane::status::Status;
use ringcomm::executor::control_block::shrink_board::Announcement;
use ringcomm::executor::control_block::{ControlBlock, Life};
use ringcomm::plan::Collective;
use ringcomm::transport::fifo::{FifoShape, Sender, Stamp};
use ringcomm::types::{DataType, ReduceOp};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

#[path = "fuzz_targets/support.rs"]
mod support;
use support::WORD;

/// The parts of ringrun that its messages need.
#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../programs/ringrun/agent"]
mod agent {
    pub mod children;
    pub mod environment;
    pub mod output_lines;
    pub mod status_dir;
}
#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../programs/ringrun/placement/mod.rs"]
mod placement;
#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../programs/ringrun/protocol"]
mod protocol {
    pub mod frame;
    pub mod messages;
}

use protocol::frame::Greeting;
use protocol::messages::{Ended, Job, RankJob, ToAgent, ToLauncher};

/// Where the seeds of a target go.
struct Corpus(PathBuf);

impl Corpus {
    fn of(target: &str) -> io::Result<Corpus> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        fs::create_dir_all(&folder)?;
        Ok(Corpus(folder))
    }

    fn add(&self, name: &str, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        fs::write(self.0.join(format!("seed-{name}")), bytes)
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What `support::patch` turns into the words of a block that are not zero. `mark` is the highest
/// bit of every patch's number.
fn patches(block: &[u8], mark: u8) -> Vec<u8> {
    let cells: Vec<&[u8]> = block.chunks_exact(WORD).collect();
    let is_set = |cell: &[u8]| cell.iter().any(|byte| *byte != 0);
    let mut patches = Vec::new();
    let mut at = 0;
    while at < cells.len() {
        // As many words as the number's seven bits count.
        let run = cells[at..].iter().take(127).take_while(|cell| is_set(cell)).count();
        if run > 0 {
            patches.push(run as u8 | mark);
            patches.extend((at as u16).to_le_bytes());
            patches.extend(cells[at..at + run].concat());
        }
        at += run.max(1);
    }
    patches
}

/// A block of a record's or a ring's alignment.
#[repr(C, align(128))]
struct Block<const BYTES: usize>([u8; BYTES]);

fn zeroed<const BYTES: usize>() -> Box<Block<BYTES>> {
    Box::new(Block([0; BYTES]))
}

fn rendezvous() -> io::Result<()> {
    let (nonce, tag) = ([7; 32], [9; 32]);
    let hello = LocalHello { rank: 1, nranks: 2, remaining_ms: 20_000, nonce }.encode();
    let challenge = Challenge { rank: 0, nranks: 2, nonce, tag }.encode();
    let handshake = Corpus::of("handshake")?;
    handshake.add("hello", hello)?;
    handshake.add("challenge", challenge)?;
    let failures = [
        Failure::Missing { waited_ms: 5000, missing: vec![1, 3], unlisted: 0 },
        Failure::Died { rank: 1, pid: 77, host: "node7".into() },
        Failure::Stuck { rank: 2, pid: 78, host: "".into(), waited_ms: 30 },
        Failure::Usage { text: "ranks disagree on the number of ranks".into() },
        Failure::System {
            rank: 0,
            pid: 79,
            host: "node8".into(),
            errno: 24,
            what: "accepting a rank".into(),
        },
    ];
    let frames = Corpus::of("frames")?;
    for (index, failure) in failures.iter().enumerate() {
        frames.add(&format!("failure-{index}"), rendezvous_wire::failure_frame(failure))?;
    }
    let offer = FrameHeader {
        fds: 3,
        process: 1 << 60,
        rank: 1,
        pid: 77,
        ..FrameHeader::bare(FrameKind::Offer)
    };
    let offer = rendezvous_wire::frame(offer, &[5; 168]);
    frames.add("offer", &offer)?;
    for kind in [FrameKind::Done, FrameKind::Go, FrameKind::Retry] {
        frames.add(&format!("{kind:?}").to_lowercase(), FrameHeader::bare(kind).encode())?;
    }
    let stranger = Corpus::of("rendezvous")?;
    stranger.add("hello", hello)?;
    stranger.add("proof", [&hello[..], &tag, &offer].concat())?;
    stranger.add("web", "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let corpus = Corpus::of("unique_id")?;
    for (name, addresses) in [("id", Vec::new()), ("network", addresses())] {
        let id = UniqueId::generate().map_err(io::Error::other)?;
        let id = id.derive_at(b"seed", &addresses);
        corpus.add(name, [&id.as_bytes()[..], b"label"].concat())?;
    }
    Ok(())
}

/// Where a rank listens.
fn addresses() -> Vec<SocketAddr> {
    ["10.0.0.1:5", "[fe80::1%3]:6"].map(|text| text.parse().expect("an address")).to_vec()
}

fn allgather() -> io::Result<()> {
    let corpus = Corpus::of("allgather")?;
    let (one, two) = (PeerId { rank: 1, pid: 20 }, PeerId { rank: 2, pid: 30 });
    // Contributions: rank, process and bytes, and then those.
    let entry = |rank: u8| [rank, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, 7, 8, 9];
    let body = [entry(1), entry(2)].concat();
    let failure = Failure::Missing { waited_ms: 3, missing: vec![1, 2], unlisted: 0 };
    let messages = [
        AllgatherMessage::Here {
            pid: 7,
            remaining_ms: 900,
            host: "node7".into(),
            addresses: addresses(),
        },
        AllgatherMessage::Place { root: two, parent: one, addresses: addresses() },
        AllgatherMessage::Join { pid: 8 },
        AllgatherMessage::Adopted { parent: one, depth: 3 },
        AllgatherMessage::Attached,
        AllgatherMessage::Offers(body.clone().into()),
        AllgatherMessage::Table { first: 1, count: 2, body: body.clone().into() },
        AllgatherMessage::Failure(failure),
    ];
    for (index, message) in messages.iter().enumerate() {
        corpus.add(&format!("message-{index}"), message.encode())?;
    }
    corpus.add("entries", body)?;
    // An introduction, the host's identity, a process, one address (IP, port, scope) and a name.
    let mut card = words(&[1; 24]);
    card.extend([7; 32]);
    card.extend([12, 0, 0, 0, 1]);
    card.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1, 80, 0, 0, 0, 0, 0]);
    card.extend(b"node");
    corpus.add("card", card)
}

fn status(life: Life, text: &str) -> Box<Status> {
    Box::new(Status {
        life,
        culprit: Some(2),
        text: text.into(),
        pid: 77,
        host: "node".into(),
        completed: 3,
        calls: Vec::new(),
        batch: None,
        board: Announcement::NOTHING,
    })
}

fn gossip() -> io::Result<()> {
    let corpus = Corpus::of("gossip")?;
    let items = [
        ("beat", Item::Beat { read: 0 }),
        ("working", Item::Status { rank: 2, version: 1, status: status(Life::Working, "") }),
        ("failed", Item::Status { rank: 3, version: 9, status: status(Life::Failed, "no room") }),
        ("gone", Item::Gone { rank: 4 }),
        ("unreached", Item::Unreached { rank: 4, by: 3, why: "was refused at a:1".into() }),
    ];
    for (name, item) in items {
        let bytes = item.encode();
        let length = (bytes.len() as u16).to_le_bytes();
        // Two neighbours connect, one says it, in two pieces; then news is looked at and passed on.
        let said = [&[2, 5, 0][..], &length, &bytes].concat();
        let then = [7, 0, 0, 4 | 1 << 6, 255, 255];
        corpus.add(name, [&[0, 0, 0, 1 << 6, 0, 0], &said[..], &then].concat())?;
        corpus.add(&format!("raw-{name}"), [&[0, 0, 0, 3], &said[1..]].concat())?;
    }
    Ok(())
}

fn data_sockets() -> io::Result<()> {
    let corpus = Corpus::of("data_socket")?;
    // In turn: send, deliver so many bytes, receive, alter, insert, forge, want, want nowhere.
    let scripts: [(&str, &[u8]); 5] = [
        ("plain", &[0, 9, 0, 1, 60, 0, 2, 0, 0, 1, 9, 0, 2, 0, 0]),
        ("landing", &[6, 8, 0, 0, 9, 0, 1, 200, 0, 2, 0, 0, 7, 0, 0]),
        ("altered", &[0, 9, 0, 3, 54, 0, 1, 200, 0, 2, 0, 0]),
        ("forged", &[5, 0, 0, 0, 9, 0, 0, 9, 0, 1, 200, 0, 2, 0, 0, 5, 9, 0, 1, 255, 255]),
        ("many", &[0, 64, 0, 0, 0, 0, 0, 64, 0, 1, 99, 0, 2, 0, 0, 1, 255, 0, 2, 0, 0, 2, 0, 0]),
    ];
    for (name, script) in scripts {
        for (mode, protection) in ["clear", "checksum", "encrypted"].iter().enumerate() {
            corpus.add(&format!("{name}-{protection}"), [&[mode as u8, 0], script].concat())?;
        }
    }
    let corpus = Corpus::of("proving")?;
    corpus.add("whole", [2, 0, 0, 9, 0, 0, 9, 0, 0, 9, 0, 0, 9, 5, 0, 0, 0, 1, 2])?;
    corpus.add("altered", [2, 0, 0, 9, 4 * 20 + 3, 1, 9])?;
    let preamble = b"ringnet\0\x02\0\0\0";
    corpus.add("gate", [&[0, 5], &preamble[..5], &[255], &preamble[5..], &[7; 80]].concat())?;
    corpus.add("caller", [&[1, 20][..], &[7; 20], &[200], &[7; 60]].concat())
}

fn launches() -> io::Result<()> {
    let corpus = Corpus::of("launch")?;
    corpus.add("hosts", "node[01-03,7],gpu-[1-2]-x[3,5]")?;
    corpus.add("tasks", "2(x3),1")?;
    corpus.add("url", "tcp://[fe80::1%eth0]:29500?rank=1&world_size=4")?;
    corpus.add("file", "file:///shared/job%207?rank=1&world_size=4")?;
    corpus.add("ringcomm", "\n1\n4\n10.0.0.1:29500\n1\njob")?;
    corpus.add("torch", "env://\n\n\n\n\n\n3\n4\n10.0.0.1\n29500\n1\n2")?;
    let slurm = "slurm://\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n";
    corpus.add("slurm", format!("{slurm}3\n4\n77\n0\na[1-2]\na[1-2]\na[1-2]\n2(x2)\n1\n1"))?;
    let id = UniqueId::at(&addresses()).map_err(io::Error::other)?;
    let hex: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let note = "ringcomm rendezvous 1\njob=a\nnranks=2\nturn=0\nhost=h\nboot=b\n\
                namespace=n\npid=7\nstarted=9\nid=";
    corpus.add("note", format!("{note}{hex}\n"))
}

fn descriptor(collective: Option<Collective>) -> CallSignature {
    CallSignature {
        collective,
        data_type: DataType::Bfloat16,
        op: ReduceOp::Avg,
        algorithm: Algorithm::Ring,
        root: 1,
        count: 1000,
    }
}

fn records() -> io::Result<()> {
    let corpus = Corpus::of("record")?;
    for collective in Collective::ALL.into_iter().map(Some).chain([None]) {
        let packed = descriptor(collective);
        let name = collective.map_or("batch", |collective| collective.name()).to_lowercase();
        corpus.add(&name, words(&[packed.pack(), packed.count as u64]))?;
    }
    let mut introduction = vec![0; 24];
    introduction[..8].copy_from_slice(&[1, 5, 4 << 20, 0, 3, 1, 1, 1]);
    introduction[8] = 3;
    corpus.add("introduction", words(&introduction))
}

/// The page of a rank that has done three collectives and is in the fourth, and then some more.
fn page(also: impl FnOnce(&ControlBlock)) -> Vec<u8> {
    const BYTES: usize = size_of::<ControlBlock>();
    let block = zeroed::<BYTES>();
    // SAFETY: zeroed memory of its size and alignment is a page, all atomics.
    let control = unsafe { &*(&raw const *block).cast::<ControlBlock>() };
    let what = descriptor(Some(Collective::AllReduce));
    for sequence in 0..4 {
        control.begin(sequence, what.fingerprint(0), what.pack(), 1000, 10 + sequence);
        if sequence < 3 {
            control.end(sequence, 20 + sequence);
        }
    }
    also(control);
    block.0.to_vec()
}

fn pages() -> io::Result<()> {
    let corpus = Corpus::of("page")?;
    let plain = page(|_| {});
    let mine = patches(&plain, 0);
    let batch = descriptor(None);
    let theirs = [
        ("working", plain.clone()),
        ("failed", page(|control| control.fail(1, "rank 1 ran out of memory"))),
        ("left", page(ControlBlock::leave)),
        ("batch", page(|control| control.begin_batch(3, batch.pack(), 2, 30))),
    ];
    for (name, theirs) in theirs {
        let head = words(&[3, 2_000_000]);
        corpus.add(name, [head, mine.clone(), patches(&theirs, 0x80)].concat())?;
    }
    corpus.add("not-begun", [words(&[3, 0]), mine].concat())
}

fn slots() -> io::Result<()> {
    /// Twice what moves in its slot from where on (2048), so that there is room to move.
    const SLOT: usize = 4096;
    const GEOMETRY: FifoShape = FifoShape { depth: 2, slot_bytes: SLOT };
    const BYTES: usize = 128 + 2 * (64 + SLOT);
    assert_eq!(GEOMETRY.bytes(), BYTES);
    let corpus = Corpus::of("slots")?;
    let head = [0, (SLOT / 64 - 1) as u8];
    for length in [8, 100, 2048, SLOT] {
        let mut block = zeroed::<BYTES>();
        // SAFETY: zeroed memory of the ring's size and alignment, used by this end alone.
        let mut sender = unsafe { Sender::new(block.0.as_mut_ptr(), GEOMETRY) };
        let stamp = Stamp { communicator: 1, epoch: 2, sequence: 5, fingerprint: 9, source: 1 };
        let mut send = Vec::new();
        for _ in 0..2 {
            sender.try_reserve(length).expect("an empty ring");
            sender.post(&stamp, length);
            send.extend([1, length as u8, (length >> 8) as u8]);
        }
        let mut bytes = head.to_vec();
        for patch in split(&patches(&block.0, 0)) {
            bytes.extend([&[3][..], &patch].concat());
        }
        // Receive both, send two, ask whether they are freed; then the peer frees them.
        bytes.extend([0, 0, 0]);
        bytes.extend(send);
        bytes.extend([1, 8, 0, 2, 4, 1, 0, 0]);
        bytes.extend(words(&[2]));
        bytes.extend([2, 1, 8, 0]);
        corpus.add(&format!("{length}-bytes"), bytes)?;
    }
    Ok(())
}

/// The single patches of many.
fn split(mut patches: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(words) = patches.first() {
        let (patch, rest) = patches.split_at(3 + usize::from(words & 0x7f) * WORD);
        all.push(patch.to_vec());
        patches = rest;
    }
    all
}

fn memory() -> io::Result<()> {
    let corpus = Corpus::of("invitation")?;
    let page = 4096;
    let unused = u64::MAX - 1;
    let invitations = [
        ("own", [1, 64, 1, page, 4000, 4000]),
        ("imported", [5, 0, 7, page, page, 2 * page]),
        ("unused", [unused, 0, 7, 0, 0, 8]),
        ("address", [u64::MAX, 0x7000_0000, 0, 0, 8, 8]),
        ("too-far", [5, 4000, 5, 0, 100, 100]),
    ];
    for (name, invitation) in invitations {
        corpus.add(name, words(&invitation))?;
    }
    let corpus = Corpus::of("mailbox")?;
    let message =
        |head: u8, region: u64, bytes: u64| [vec![head, 16], words(&[region, bytes])].concat();
    let resolve = |words_of: &[u64]| [vec![0x80], words(words_of)].concat();
    let (one, three) = (message(1, 5, page), message(1 | 1 << 2, 7, 3 * page));
    let both = resolve(&[5, 0, 7, page, page, 2 * page]);
    corpus.add("two-regions", [&one[..], &three, &both, &both].concat())?;
    corpus.add("unsealed", [message(1 | 2 << 2, 5, page), both.clone()].concat())?;
    corpus.add("no-memory", [message(1 | 3 << 2, 5, page), both.clone()].concat())?;
    corpus.add("two-descriptors", [message(2, 5, page), one.clone(), both.clone()].concat())?;
    corpus.add("no-descriptor", [message(0, 5, page), both.clone()].concat())?;
    corpus.add("wrong-size", [message(1, 5, 3 * page), both].concat())
}

fn texts() -> io::Result<()> {
    let corpus = Corpus::of("settings")?;
    corpus.add("all", "250\n2M\n1\nring\n100\nprofile.txt\n2")?;
    corpus.add("sizes", "1K\n64k\n0\ntree\n\n\n")?;
    let corpus = Corpus::of("profile")?;
    corpus.add("defaults", Costs { cores: 2, ..Costs::default() }.to_text())?;
    let corpus = Corpus::of("trace")?;
    let sizes = [0, 1, 0, 4];
    let text = b"# a model\na.weight 100 float\nb 200 half\n\nc 50 bfloat16\nd 10 float\n";
    corpus.add("model", [&sizes[..], text].concat())?;
    let corpus = Corpus::of("options")?;
    corpus.add("nccl-tests", "-b\n8\n-e\n128M\n-f\n2\n-t\n2\n-d\nfloat,half\n-o\nall")?;
    corpus.add("reports", "all_reduce\nbroadcast\n--json\na.json\n--csv\n--tolerance=0.2")?;
    let corpus = Corpus::of("json")?;
    corpus
        .add("values", "{\"a\": [1, -2.5e3, true, null], \"b\": \"x\\n\\u00e9\\\"\", \"c\": {}}")?;
    corpus.add(
        "row",
        "{\"op\":\"all_reduce\",\"bytes\":8,\"count\":2,\"type\":\"float\",\"redop\":\"sum\",\
         \"root\":null,\"ranks\":2,\"mode\":\"threads\",\"transport\":\"shm\",\
         \"algorithm\":\"one_shot\",\"in_place\":true,\"time_us\":0.25}",
    )
}

fn launcher() -> io::Result<()> {
    let hosts = Corpus::of("hosts")?;
    hosts.add("list", "a:2,me@b:3,c,[fe80::1]:4,a")?;
    hosts.add("file", "# the machines\na slots=40\n\nb:30 # the big one\nc\n")?;
    let variable = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    let rank = RankJob { rank: 2, local_size: 1, variables: vec![variable("RANK", "2")] };
    let job = Job {
        command: vec![b"program".to_vec(), b"-x".to_vec()],
        directory: b"/tmp".to_vec(),
        forwarded: vec![variable("A", "b c")],
        ranks: vec![rank],
        input_rank: Some(2),
        raw_output: None,
        grace: Duration::from_millis(1500),
        remote: true,
        nccl: true,
    };
    let to_agent =
        [ToAgent::Job(job), ToAgent::Signal(15), ToAgent::Input(vec![0; 9]), ToAgent::Ping];
    let to_agent: Vec<u8> = to_agent.iter().flat_map(ToAgent::frame).collect();
    let (stream, ended) = (protocol::messages::Stream::Error, Ended::Code(3));
    let to_launcher = [
        ToLauncher::Started { rank: 1, pid: 77 },
        ToLauncher::Output { rank: 1, stream, bytes: b"a line\r\nand more".to_vec() },
        ToLauncher::End { rank: 1, stream },
        ToLauncher::Exited { rank: 1, ended },
        ToLauncher::NotStarted { rank: 1, why: b"no such file".to_vec(), status: 127 },
        ToLauncher::Taken(5),
    ];
    let to_launcher: Vec<u8> = to_launcher.iter().flat_map(ToLauncher::frame).collect();
    let greeting = Greeting { version: "0.1.0".into(), port: 4242, second_port: 4243 }.line();
    // As the target reads it: a mode, then pieces with their lengths.
    let in_pieces = |mode: u8, bytes: &[u8], most: usize| {
        let pieces = bytes.chunks(most).flat_map(|piece| [&[piece.len() as u8], piece].concat());
        [mode].into_iter().chain(pieces).collect::<Vec<u8>>()
    };
    let agent = Corpus::of("agent")?;
    agent.add("to-agent", in_pieces(0, &to_agent, 255))?;
    agent.add("to-launcher", in_pieces(1, &[greeting, to_launcher].concat(), 20))
}

fn main() -> io::Result<()> {
    launcher()?;
    rendezvous()?;
    allgather()?;
    gossip()?;
    data_sockets()?;
    launches()?;
    records()?;
    pages()?;
    slots()?;
    memory()?;
    texts()
}
