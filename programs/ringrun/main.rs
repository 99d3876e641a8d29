//! ringrun: starts a program as the ranks of one job, on this machine and on others.
//!
//! The launcher starts an agent for every host, here as a child, elsewhere through ssh; the agents
//! start the ranks. Both sides are one loop each over pipes and signals (`launcher::job_run`,
//! `agent`), and speak in frames (`protocol`). What is decided rather than done is pure: hosts,
//! placement, environment, lines, policy.

#![deny(unsafe_code)]

mod agent;
mod cli;
mod launcher;
mod placement;
mod protocol;
mod sys;
mod tools;

use cli::options::{Options, Parsed};
use launcher::discovery;
use launcher::job_setup::Setup;
use std::process::ExitCode;
use sys::terminal::{complain, say};

/// The exit status for a bad option.
const BAD_OPTION: u8 = 2;

/// The exit status where hosts did not come.
const NO_HOSTS: u8 = 255;

fn begin(mut options: Options) -> u8 {
    if let Some(script) = &options.host_discovery_script {
        match discovery::first(&options, script) {
            Ok((hosts, ranks)) => (options.hosts, options.ranks) = (Some(hosts), Some(ranks)),
            Err(text) => {
                complain(&text);
                return NO_HOSTS;
            }
        }
    }
    let setup = match Setup::new(&options) {
        Ok(setup) => setup,
        Err(text) => {
            complain(&text);
            return BAD_OPTION;
        }
    };
    if options.dry_run {
        say(&setup.describe(&options));
        return 0;
    }
    let names: Vec<String> = setup.stations.iter().map(|station| station.name.clone()).collect();
    let goes_on = options.check && options.pair.is_none() && names.len() > 2;
    let status = launcher::run(options, setup).unwrap_or_else(|text| {
        complain(&text);
        1
    });
    if goes_on && tools::check_pairs::is_finding(status) {
        tools::check_pairs::check(&names)
    } else {
        status
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let called = arguments.next().unwrap_or_default();
    let arguments: Vec<std::ffi::OsString> = arguments.collect();
    let status = match cli::options::parse(&called, &arguments) {
        Ok(Parsed::Status(wanted)) => match tools::status::answer(&wanted) {
            Ok(text) => {
                say(&text);
                0
            }
            Err(text) => {
                complain(&text);
                1
            }
        },
        Ok(Parsed::CheckRank) => tools::check::serve(),
        Ok(Parsed::Agent(ports)) => u8::from(!agent::serve(ports).unwrap_or(false)),
        Ok(Parsed::Run(options)) => begin(*options),
        Err(answer) => {
            // The help and the version come so, too; a reader that has gone away needs none.
            let _ = answer.print();
            answer.exit_code() as u8
        }
    };
    ExitCode::from(status)
}
