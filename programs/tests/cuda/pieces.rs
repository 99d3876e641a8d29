//! Memory that is mapped piece by piece, among ranks that are processes.

use super::here::{has_one_device, has_reach, is_on_fake};
use super::processes::{SHARED, apart, check_sum, is_within_reach, join, transport};
use super::streams::{Floats, sum};
use super::{Bench, fake};
use ringcomm::communicator::{Call, Communicator, Order};
use ringcomm::device::cuda::{Addresses, HandleType, PhysicalPiece, copy};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

/// Addresses with pieces of one size behind them.
pub struct Mapped {
    addresses: Addresses,
    piece_bytes: usize,
    carrier: Option<HandleType>,
}

impl Mapped {
    pub fn new(bench: &Bench, npieces: usize, carrier: Option<HandleType>) -> Mapped {
        let piece = |_| PhysicalPiece::new(&bench.device, 1, carrier).unwrap();
        let pieces: Vec<PhysicalPiece> = (0..npieces).map(piece).collect();
        let addresses = Addresses::of(&bench.device, &pieces).unwrap();
        Mapped { addresses, piece_bytes: pieces[0].bytes, carrier }
    }

    /// Other memory at the same addresses.
    fn replace(&mut self, bench: &Bench, index: usize) {
        let fresh = PhysicalPiece::new(&bench.device, 1, self.carrier).unwrap();
        self.addresses.unmap(index * self.piece_bytes);
        self.addresses.map(index * self.piece_bytes, &fresh).unwrap();
    }

    /// Sum in place all but the first and the last float, of this rank's own numbers; hold what
    /// came against the sum of the ranks'.
    pub fn check_sum(&self, comm: &Communicator, bench: &Bench, salt: usize) {
        let count = self.addresses.bytes() / 4;
        let value = |index: usize, rank: usize| ((index * 7 + salt) % 1000 + rank) as f32;
        let mut values: Vec<f32> = (0..count).map(|index| value(index, comm.rank())).collect();
        self.copy(bench, &mut values, true);
        let inner = self.addresses.pointer().wrapping_add(4);
        let call = Call {
            send: inner,
            recv: inner,
            count: count - 2,
            order: Order::on(bench.stream.raw()),
            ..Call::new(Collective::AllReduce, DataType::Float32)
        };
        // SAFETY: the memory lives until it is read.
        unsafe { comm.call(&call) }.unwrap();
        self.copy(bench, &mut values, false);
        let sum = |index| (0..comm.nranks()).map(|rank| value(index, rank)).sum::<f32>();
        for (index, got) in values.iter().enumerate() {
            let is_inner = (1..count - 1).contains(&index);
            let want = if is_inner { sum(index) } else { value(index, comm.rank()) };
            assert_eq!(*got, want, "float {index} of {count}");
        }
    }

    fn copy(&self, bench: &Bench, values: &mut [f32], is_to_device: bool) {
        let (host, mapped) = (values.as_mut_ptr().cast::<u8>(), self.addresses.pointer());
        let (to, from) = if is_to_device { (mapped, host) } else { (host, mapped) };
        {
            let _current = bench.device.enter().unwrap();
            // SAFETY: as many bytes, and both stay until the stream is synchronized.
            unsafe { copy(&bench.device, to, from, 4 * values.len(), bench.stream.raw()) }.unwrap();
        }
        bench.stream.synchronize().unwrap();
    }
}

/// Whatever was made, opened, reserved or mapped was given back.
fn check_given_back() {
    if !fake::is_there() {
        return;
    }
    let calls = |symbols: &[&str]| symbols.iter().map(|symbol| fake::calls(symbol)).sum::<u64>();
    let taken = ["cuMemCreate", "cuMemRetainAllocationHandle", "cuMemImportFromShareableHandle"];
    assert_eq!(calls(&taken), calls(&["cuMemRelease"]));
    assert_eq!(calls(&["cuMemMap"]), calls(&["cuMemUnmap"]));
    assert_eq!(calls(&["cuMemAddressReserve"]), calls(&["cuMemAddressFree"]));
}

#[test]
fn pieces_go_to_the_processes_that_launch() {
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        let carriers = bench.device.carriers();
        // A fabric is for the driver to have.
        let has_all = HandleType::ALL.into_iter().all(|carrier| carriers.has(carrier));
        assert!(has_all || !fake::is_there(), "{carriers:?}");
        for carrier in HandleType::ALL.into_iter().filter(|carrier| carriers.has(*carrier)) {
            let mapped = Mapped::new(&bench, 3, Some(carrier));
            mapped.check_sum(&comm, &bench, 1);
            let opened = "cuMemImportFromShareableHandle";
            let before = fake::is_there().then(|| fake::calls(opened));
            for salt in 0..10 {
                mapped.check_sum(&comm, &bench, salt);
            }
            // Once is enough for all calls.
            assert_eq!(fake::is_there().then(|| fake::calls(opened)), before);
            // Nobody frees what a peer's kernels may still use.
            check_sum(&comm, &bench, 10);
        }
        if is_within_reach(2) {
            assert_eq!(transport(&comm), SHARED);
        }
        drop(comm);
        check_given_back();
        String::new()
    });
}

/// A fabric that carries nothing to the peers: what only it could carry goes through the host, and
/// all else as before.
#[test]
fn pieces_of_a_fabric_that_fails_go_through_the_host() {
    if !is_on_fake() || !has_reach(2) {
        return;
    }
    apart(2, "", |place, _| {
        const OPENED: &str = "cuMemImportFromShareableHandle";
        let (parent, bench) = join(place);
        // As many of either kind, by the rank that launches.
        let opened = fake::calls(OPENED);
        if place.rank == 0 {
            assert!(opened > 1 && opened.is_multiple_of(2), "{opened}");
            fake::fail(OPENED, opened / 2 + 1, 4711);
        }
        let comm = parent.split(0, place.rank as i32, None).unwrap().expect("a color");
        let plain = Mapped::new(&bench, 2, Some(HandleType::Descriptor));
        plain.check_sum(&comm, &bench, 1);
        assert_eq!(transport(&comm), SHARED);
        let mapped = Mapped::new(&bench, 2, Some(HandleType::Fabric));
        mapped.check_sum(&comm, &bench, 2);
        let says = transport(&comm);
        assert!(says.contains("or gpu/staged"), "{says}");
        plain.check_sum(&comm, &bench, 3);
        // Where nothing fails they go to the peers.
        mapped.check_sum(&parent, &bench, 4);
        assert_eq!(transport(&parent), SHARED);
        drop((comm, parent, plain, mapped));
        String::new()
    });
}

#[test]
fn a_piece_that_is_replaced_is_never_mistaken() {
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        let mut mapped = Mapped::new(&bench, 4, Some(HandleType::Descriptor));
        for round in 0..12 {
            mapped.check_sum(&comm, &bench, round);
            mapped.replace(&bench, round % 4);
        }
        drop((comm, mapped));
        check_given_back();
        String::new()
    });
}

/// Memory that was not made to travel, and more pieces than go at once.
#[test]
fn pieces_that_do_not_travel_go_through_the_host() {
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        for (npieces, carrier) in [(2, None), (130, Some(HandleType::Descriptor))] {
            if npieces > 2 && !fake::is_there() {
                // Of a real device's size they take long.
                continue;
            }
            let mapped = Mapped::new(&bench, npieces, carrier);
            mapped.check_sum(&comm, &bench, 3);
            check_sum(&comm, &bench, 10);
            let says = transport(&comm);
            assert_eq!(says.contains("or gpu/staged"), is_within_reach(2), "{says}");
            mapped.check_sum(&comm, &bench, 4);
        }
        drop(comm);
        check_given_back();
        String::new()
    });
}

/// Every entry point of memory in pieces failing, as the ranks meet and in a call: a call through
/// the host, or an error in words.
#[test]
fn an_error_of_what_maps_pieces_ends_in_words() {
    if !is_on_fake() || !has_reach(2) {
        return;
    }
    // Those of the rank that owns the memory, and those of the rank that opens it; whether a call
    // asks for them and tells of their first error.
    const SYMBOLS: [(&str, usize, bool); 10] = [
        ("cuMemRetainAllocationHandle", 1, true),
        ("cuMemExportToShareableHandle", 1, true),
        ("cuPointerGetAttribute", 1, true),
        // What makes memory is the test's own use.
        ("cuMemGetAllocationGranularity", 1, false),
        ("cuMemCreate", 1, false),
        ("cuMemImportFromShareableHandle", 0, true),
        ("cuMemAddressReserve", 0, true),
        ("cuMemMap", 0, true),
        ("cuMemSetAccess", 0, true),
        ("cuMemRelease", 0, false),
    ];
    for (symbol, victim, is_told) in SYMBOLS {
        for moment in ["barrier", "call"] {
            let argument = format!("{symbol} {victim} {moment}");
            let said = apart(2, &argument, |place, argument| {
                with_failure(place, &argument.split(' ').collect::<Vec<_>>())
            });
            let told = said.iter().all(|said| said.contains("4711"));
            assert_eq!(told, is_told && moment == "call", "{argument}: {said:?}");
            let are_alike = said[0].starts_with("error") == said[1].starts_with("error");
            assert!(are_alike, "{argument}: {said:?}");
            if moment == "barrier" {
                // An error of a trial is no reason to have no communicator.
                assert!(!said[0].starts_with("error"), "{argument}: {said:?}");
            }
        }
    }
}

/// A rank of the test above: what it says of itself.
fn with_failure(place: &super::support::processes::Seat, words: &[&str]) -> String {
    let fails = |moment: &str| words[1] == place.rank.to_string() && words[2] == moment;
    if fails("barrier") {
        fake::fail(words[0], 1, 4711);
    }
    let (comm, bench) = join(place);
    let mapped = Mapped::new(&bench, 2, Some(HandleType::Descriptor));
    if fails("call") {
        fake::fail(words[0], 1, 4711);
    }
    let inner = mapped.addresses.pointer();
    let call = Call {
        send: inner,
        recv: inner,
        count: mapped.addresses.bytes() / 4,
        order: Order::on(bench.stream.raw()),
        ..Call::new(Collective::AllReduce, DataType::Float32)
    };
    for _ in 0..3 {
        // SAFETY: the memory lives until the stream is synchronized.
        if let Err(error) = unsafe { comm.call(&call) } {
            // Calls before this one may still run.
            bench.stream.synchronize().unwrap();
            return format!("error: {error}");
        }
    }
    bench.stream.synchronize().unwrap();
    transport(&comm).into()
}

/// Calls go on with other memory, and nothing new is opened: what was freed is closed all the same.
#[test]
fn memory_that_was_freed_is_closed_by_and_by() {
    if !is_on_fake() || !has_one_device() {
        return;
    }
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        let kept = Mapped::new(&bench, 1, Some(HandleType::Descriptor));
        kept.check_sum(&comm, &bench, 1);
        let mapped = Mapped::new(&bench, 2, Some(HandleType::Descriptor));
        mapped.check_sum(&comm, &bench, 2);
        let floats = Floats::new(&bench, &[1.0; 100]);
        // SAFETY: the memory lives until it is read.
        unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
        assert_eq!(floats.read(&bench), [2.0; 100]);
        drop((mapped, floats));
        // Those of the trial are closed by now.
        let open = || {
            let opened = fake::calls("cuIpcOpenMemHandle_v2");
            let mapped = fake::calls("cuMemImportFromShareableHandle");
            let unmapped = fake::calls("cuMemUnmap");
            (opened - fake::calls("cuIpcCloseMemHandle"), mapped, unmapped)
        };
        let before = open();
        assert_eq!(before.0, u64::from(place.rank == 0));
        // More than there are entries, of which every call looks at one.
        for salt in 0..60 {
            kept.check_sum(&comm, &bench, salt);
        }
        let after = open();
        assert_eq!((after.0, after.1), (0, before.1));
        // The two pieces, and others of the trial that were next to them.
        assert_eq!(after.2 - before.2 >= 2, place.rank == 0);
        String::new()
    });
}
