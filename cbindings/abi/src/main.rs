//! Writes `include/ringcomm.h`; `make header` runs this.

fn main() {
    let path = ringcomm_abi::root().join("include/ringcomm.h");
    std::fs::create_dir_all(path.parent().expect("include")).expect("make include");
    std::fs::write(&path, ringcomm_abi::header()).expect("write the header");
    println!("wrote {}", path.display());
}
