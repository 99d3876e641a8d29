// What the tests of the C++ wrapper have in common. Ranks are threads.
#ifndef RINGCOMM_TESTS_WRAPPER_H
#define RINGCOMM_TESTS_WRAPPER_H

#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <ringcomm.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using ringcomm::Communicator;
using ringcomm::Counts;
using ringcomm::Error;
using ringcomm::Group;
using ringcomm::Memory;
using ringcomm::Reduction;
using ringcomm::Registration;
using ringcomm::Stream;
using ringcomm::UniqueId;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            throw std::runtime_error(std::string(__FILE__ ":") + std::to_string(__LINE__) +        \
                                     ": not so: " #condition);                                     \
    } while (0)

// The code of the Error that `calls` throws; ringSuccess where it throws none.
inline ringResult_t code_of(const std::function<void()> &calls) {
    try {
        calls();
    } catch (const Error &error) {
        EXPECT(std::string(error.what()).size() > 3);
        return error.code();
    }
    return ringSuccess;
}

// Run `work` on a thread for each rank; the first exception is thrown on.
inline void on_threads(int ranks, const std::function<void(int)> &work) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back([&, rank] {
            try {
                work(rank);
            } catch (...) {
                failures[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    for (const std::exception_ptr &failure : failures)
        if (failure)
            std::rethrow_exception(failure);
}

// The same with a communicator, which goes when the work is done or has failed.
inline void on_ranks(int ranks, const std::function<void(Communicator &)> &work) {
    std::vector<Communicator> comms = Communicator::all(ranks);
    on_threads(ranks, [&](int rank) {
        Communicator mine = std::move(comms[static_cast<std::size_t>(rank)]);
        work(mine);
    });
}

const int RANKS = 3;

// Run a program's tests: its exit status.
inline int report(const char *said, const std::function<void()> &tests) {
    try {
        tests();
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    std::cout << said << "\n";
    return 0;
}

#endif
