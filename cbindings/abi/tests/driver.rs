//! What the library takes the CUDA driver's driver_sys to be is what NVIDIA's header says.
//!
//! The library binds the driver by names and by what it believes of them, and so does the driver
//! without a GPU that its tests run on: where both are wrong, all of those pass. Here the header
//! itself speaks, through cudarc's `sys`, which bindgen made of it. Nothing of that is called.

#[path = "../../../src/device/cuda/driver_sys.rs"]
#[allow(dead_code)]
mod driver_sys;

use cudarc::driver::sys;
use driver_sys::*;
use ringcomm::device::cuda::{Driver, HandleType};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::mem::{align_of, offset_of, size_of};
use syn::visit::Visit;

/// A type as those see it who agree on how to call: how many bytes, where, and what is behind a
/// pointer.
trait Seen {
    fn seen() -> String;
}

impl<T: Seen> Seen for *mut T {
    fn seen() -> String {
        format!("*mut {}", T::seen())
    }
}

impl<T: Seen> Seen for *const T {
    fn seen() -> String {
        format!("*const {}", T::seen())
    }
}

macro_rules! seen {
    ($($what:literal: $($type:ty)*;)*) => { $($(
        impl Seen for $type {
            fn seen() -> String {
                $what.replace("N", &size_of::<$type>().to_string())
            }
        }
    )*)* };
}

seen! {
    // An enum is a number: the library never makes one of what a driver says.
    "number of N bytes":
        i8 u8 i32 u32 u64 usize sys::CUresult sys::CUdevice_attribute sys::CUpointer_attribute
        sys::CUstreamCaptureStatus sys::CUstreamCaptureMode sys::CUmemAllocationHandleType
        sys::CUmemAllocationGranularity_flags;
    "float of N bytes": f32;
    "structure of N bytes":
        [u8; 16] sys::CUuuid IpcMemHandle sys::CUipcMemHandle AllocationProp
        sys::CUmemAllocationProp AccessDesc sys::CUmemAccessDesc;
    "whatever":
        c_void sys::CUctx_st sys::CUstream_st sys::CUevent_st sys::CUmod_st sys::CUfunc_st
        sys::CUgraph_st sys::CUgraphExec_st sys::CUgraphNode_st;
}

/// A function's type, as those see it.
trait Prototype {
    fn seen() -> String;
}

macro_rules! prototypes {
    ($($($argument:ident)*;)*) => { $(
        impl<R: Seen, $($argument: Seen),*> Prototype
            for unsafe extern "C" fn($($argument),*) -> R
        {
            fn seen() -> String {
                let arguments: Vec<String> = vec![$($argument::seen()),*];
                format!("({}) -> {}", arguments.join(", "), R::seen())
            }
        }

        // cudarc's own functions, each of which hands its arguments to the driver's.
        impl<R: Seen, $($argument: Seen),*> Prototype for unsafe fn($($argument),*) -> R {
            fn seen() -> String {
                <unsafe extern "C" fn($($argument),*) -> R>::seen()
            }
        }
    )* };
}

prototypes! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G H I J;
    A B C D E F G H I J K;
}

fn seen<P: Prototype>(_: P) -> String {
    P::seen()
}

/// As many types for the compiler to find out as there are arguments: another number of them does
/// not compile.
macro_rules! any {
    ($argument:ty) => {
        _
    };
}

/// Every entry point, as the library has it and as the header does.
macro_rules! both {
    ($($name:ident = $symbol:ident ($($argument:ty),*);)*) => {
        [$((
            stringify!($symbol),
            <unsafe extern "C" fn($($argument),*) -> Code>::seen(),
            seen(sys::$symbol as unsafe fn($(any!($argument)),*) -> _),
        )),*]
    };
}

#[test]
fn every_entry_point_has_the_headers_prototype() {
    let all = entry_points!(both);
    assert_eq!(all.each_ref().map(|(symbol, ..)| *symbol), Driver::SYMBOLS);
    for (symbol, ours, theirs) in all {
        assert_eq!(ours, theirs, "{symbol}");
    }
    let ours = <CurrentContext as Prototype>::seen();
    assert_eq!(ours, seen(sys::cuCtxGetCurrent as unsafe fn(_) -> _));
}

#[test]
fn every_structure_has_the_headers_layout() {
    use sys::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation};
    let wanted = [
        (offset_of!(AllocationProp, kind), offset_of!(CUmemAllocationProp, type_)),
        (
            offset_of!(AllocationProp, carriers),
            offset_of!(CUmemAllocationProp, requestedHandleTypes),
        ),
        (offset_of!(AllocationProp, place), offset_of!(CUmemAllocationProp, location)),
        // Two fields that are zero.
        (offset_of!(AllocationProp, unused), offset_of!(CUmemAllocationProp, win32HandleMetaData)),
        (size_of::<AllocationProp>(), size_of::<CUmemAllocationProp>()),
        (align_of::<AllocationProp>(), align_of::<CUmemAllocationProp>()),
    ];
    let place = [
        (offset_of!(MemLocation, kind), offset_of!(CUmemLocation, type_)),
        (offset_of!(MemLocation, ordinal), offset_of!(CUmemLocation, id)),
        (size_of::<MemLocation>(), size_of::<CUmemLocation>()),
        (align_of::<MemLocation>(), align_of::<CUmemLocation>()),
    ];
    let right = [
        (offset_of!(AccessDesc, place), offset_of!(CUmemAccessDesc, location)),
        (offset_of!(AccessDesc, what), offset_of!(CUmemAccessDesc, flags)),
        (size_of::<AccessDesc>(), size_of::<CUmemAccessDesc>()),
        (align_of::<AccessDesc>(), align_of::<CUmemAccessDesc>()),
    ];
    for (ours, theirs) in wanted.into_iter().chain(place).chain(right) {
        assert_eq!(ours, theirs);
    }
    // By value it lies on the stack, or behind a pointer, in words of eight bytes, however it is
    // aligned elsewhere: it has too many bytes for registers.
    assert_eq!(size_of::<IpcMemHandle>(), size_of::<sys::CUipcMemHandle>());
}

/// Where a constant is, and its name.
type Named = (String, String);

/// Every constant of whole numbers in a file, those within functions too.
#[derive(Default)]
struct Constants(Vec<(String, Vec<i64>)>);

/// What an expression of literals is worth; of names it is not known.
fn value(of: &syn::Expr) -> Option<Vec<i64>> {
    let one = |of: &syn::Expr| value(of).filter(|all| all.len() == 1).map(|all| all[0]);
    match of {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => {
            Some(vec![number.base10_parse().expect("a number")])
        }
        syn::Expr::Binary(pair) => match pair.op {
            syn::BinOp::BitOr(_) => Some(vec![one(&pair.left)? | one(&pair.right)?]),
            syn::BinOp::Shl(_) => Some(vec![one(&pair.left)? << one(&pair.right)?]),
            _ => None,
        },
        syn::Expr::Array(array) => array.elems.iter().map(one).collect(),
        _ => None,
    }
}

impl Visit<'_> for Constants {
    fn visit_item_const(&mut self, item: &syn::ItemConst) {
        self.0.extend(value(&item.expr).map(|value| (item.ident.to_string(), value)));
    }

    fn visit_impl_item_const(&mut self, item: &syn::ImplItemConst) {
        self.0.extend(value(&item.expr).map(|value| (item.ident.to_string(), value)));
    }
}

/// The numbers in the library's files about CUDA.
fn ours() -> BTreeMap<Named, Vec<i64>> {
    let mut all = BTreeMap::new();
    for path in ringcomm_abi::sources("src/device/cuda") {
        let is_folders = path.ends_with("mod.rs");
        let named = if is_folders { path.parent().expect("a folder") } else { path.as_path() };
        let file = named.file_stem().expect("a name").to_string_lossy().into_owned();
        let mut constants = Constants::default();
        let text = std::fs::read_to_string(&path).expect("a source");
        constants.visit_file(&syn::parse_file(&text).expect("Rust"));
        for (name, value) in constants.0 {
            let before = all.insert((file.clone(), name.clone()), value);
            assert!(before.is_none(), "{file}: two constants {name}");
        }
    }
    all
}

/// The library's own, which no driver knows of.
const OWN: [(&str, &str); 8] = [
    ("driver", "OLDEST"),
    // The driver's, but a macro with a cast in C: `#define CU_STREAM_PER_THREAD ((CUstream)0x2)`.
    ("event", "PER_THREAD_STREAM"),
    ("fused", "LARGEST_TILE"),
    ("fused", "LEAST_THREADS"),
    ("fused", "PAIR_TILE"),
    ("fused", "SMALLEST_TILE"),
    ("fused", "WARP"),
    ("launch_order", "PAGE"),
];

/// The driver's numbers that the library has, and the header's.
fn theirs() -> BTreeMap<Named, Vec<i64>> {
    use sys::CUdevice_attribute::*;
    use sys::CUpointer_attribute::*;
    use sys::CUresult::*;
    macro_rules! all {
        ($($file:literal $name:literal: $($value:expr),*;)*) => {
            [$((($file.to_string(), $name.to_string()), vec![$($value as i64),*])),*].into()
        };
    }
    all! {
        "driver_sys" "INVALID_VALUE": CUDA_ERROR_INVALID_VALUE;
        "driver_sys" "NO_DEVICE": CUDA_ERROR_NO_DEVICE;
        "driver_sys" "ALREADY_MAPPED": CUDA_ERROR_ALREADY_MAPPED;
        "driver_sys" "NO_BINARY_FOR_GPU": CUDA_ERROR_NO_BINARY_FOR_GPU;
        "driver_sys" "TOO_NEW": CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX,
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUDA_ERROR_JIT_COMPILATION_DISABLED;
        "driver_sys" "PEER_ACCESS_UNSUPPORTED": CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        "driver_sys" "PEER_ACCESS_ALREADY_ENABLED": CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
        "driver_sys" "NOT_READY": CUDA_ERROR_NOT_READY;
        "driver_sys" "NOT_PERMITTED": CUDA_ERROR_NOT_PERMITTED;
        "driver_sys" "NOT_SUPPORTED": CUDA_ERROR_NOT_SUPPORTED;
        "driver_sys" "RELAXED": sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        "context" "MULTIPROCESSORS": CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        "context" "UNIFIED_ADDRESSING": CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        "va_range" "MAPS": CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        "va_range" "HAS_DESCRIPTORS":
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        "va_range" "HAS_FABRIC": CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
        "va_range" "ALLOWED_CARRIERS": CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
        "va_range" "MAPPING_BYTES": CU_POINTER_ATTRIBUTE_MAPPING_SIZE;
        "va_range" "MAPPING_BASE": CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
        "va_range" "MEMORY_BLOCK": CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
        "va_range" "READ_AND_WRITE": sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        "memory" "MEMORY_TYPE": CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        "memory" "DEVICE_ORDINAL": CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        "memory" "IS_LEGACY_IPC_CAPABLE": CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
        // Before the first of the memory types: what the driver leaves of memory it does not know.
        "memory" "UNKNOWN": sys::CUmemorytype::CU_MEMORYTYPE_HOST as i64 - 1;
        "memory" "HOST": sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        "memory" "PORTABLE": sys::CU_MEMHOSTALLOC_PORTABLE;
        "event" "DISABLE_TIMING": sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        "event" "NON_BLOCKING": sys::CUstream_flags::CU_STREAM_NON_BLOCKING;
        "stream_memops" "PORTABLE_AND_MAPPED":
            sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        "stream_memops" "AT_LEAST": sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ;
        "vmm" "FABRIC_BYTES": size_of::<sys::CUmemFabricHandle>();
        // One number for two things: a piece's kind, and its place's.
        "vmm" "ON_DEVICE": sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        "vmm" "LEAST":
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        "ipc" "BUFFER_ID": CU_POINTER_ATTRIBUTE_BUFFER_ID;
        "ipc" "ENABLE_PEER_ACCESS":
            sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    }
}

/// A number that the library has and nobody listed is a complaint, too.
#[test]
fn every_number_is_the_headers() {
    let mut ours = ours();
    for (file, name) in OWN {
        assert!(ours.remove(&(file.into(), name.into())).is_some(), "{file}: no {name}");
    }
    assert_eq!(ours, theirs());
    use sys::CUmemAllocationHandleType as Type;
    assert_eq!(HandleType::Descriptor as u32, Type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0);
    assert_eq!(HandleType::Fabric as u32, Type::CU_MEM_HANDLE_TYPE_FABRIC.0);
}

/// Numbers that stand in the code without a name, where it says what they are.
#[test]
fn every_number_without_a_name_is_the_headers() {
    let of = |path: &str, text: &str, number: i64, theirs: i64| {
        let source = ringcomm_abi::root().join("src/device/cuda").join(path);
        let source = std::fs::read_to_string(source).expect(path);
        assert!(source.contains(text), "{path} has no {text:?} any more");
        assert_eq!(number, theirs, "{path}: {text}");
    };
    use sys::{CUevent_flags, CUmemLocationType, CUstreamCaptureMode, CUstreamCaptureStatus};
    let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as i64;
    of("event.rs", "0 => Capture::No", 0, none);
    let active = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as i64;
    of("event.rs", "1 => Capture::Yes(id)", 1, active);
    let global = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as i64;
    of("event.rs", "0 forbids all threads", 0, global);
    let own = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as i64;
    of("event.rs", "1 its own", 1, own);
    let timed = CUevent_flags::CU_EVENT_DEFAULT as i64;
    of("event.rs", "Recording::Time { 0 }", 0, timed);
    let device = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i64;
    of("memory/vmm.rs", "const ON_DEVICE: i32 = 1", 1, device);
    let write = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as i64;
    of("stream_memops.rs", "(device.driver.write_value)(stream, word, value, 0)", 0, write);
}
