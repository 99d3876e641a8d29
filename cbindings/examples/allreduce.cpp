// All-reduce from C++: objects own the handles, errors are exceptions.
#include <exception>
#include <iostream>
#include <ringcomm.hpp>
#include <thread>
#include <vector>

static void work(ringcomm::Communicator comm) {
    std::vector<double> values(12345, comm.rank() + 1.0);
    comm.allReduce(values.data(), values.data(), values.size());
    const double wanted = comm.count() * (comm.count() + 1) / 2;
    for (double value : values)
        if (value != wanted)
            throw std::runtime_error("a wrong sum");

    // On a stream: the call returns at once.
    ringcomm::Stream stream;
    std::vector<float> gathered(static_cast<std::size_t>(comm.count()));
    const float mine = static_cast<float>(comm.rank());
    comm.allGather(&mine, gathered.data(), 1, stream.handle());
    stream.synchronize();
    for (int rank = 0; rank < comm.count(); rank++)
        if (gathered[static_cast<std::size_t>(rank)] != static_cast<float>(rank))
            throw std::runtime_error("a wrong block");

    // A rank that is not there is an exception with a text.
    try {
        comm.broadcast(&mine, gathered.data(), 1, comm.count());
        throw std::runtime_error("a root out of range was accepted");
    } catch (const ringcomm::Error &error) {
        if (error.code() != ringInvalidArgument)
            throw;
    }
}

int main() {
    const int ranks = 3;
    std::vector<ringcomm::Communicator> comms = ringcomm::Communicator::all(ranks);
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(ranks);
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back([&, rank] {
            try {
                work(std::move(comms[static_cast<std::size_t>(rank)]));
            } catch (...) {
                failures[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    for (const std::exception_ptr &failure : failures)
        if (failure) {
            try {
                std::rethrow_exception(failure);
            } catch (const std::exception &error) {
                std::cerr << error.what() << "\n";
                return 1;
            }
        }
    std::cout << ranks << " threads summed through the C++ wrapper\n";
    return 0;
}
