// A call that would wait for ever, aborted by another thread: an exception for whoever waits.
#include <iostream>
#include <ringcomm.hpp>
#include <string>
#include <thread>
#include <vector>

// The code that the call failed with.
static ringResult_t wait_for_ever(ringcomm::Communicator &comm) {
    try {
        float value = 1;
        // The other rank never calls.
        comm.allReduce(&value, &value, 1);
    } catch (const ringcomm::Error &error) {
        std::cout << "  " << error.what() << "\n";
        return error.code();
    }
    return ringSuccess;
}

int main() {
    std::vector<ringcomm::Communicator> comms = ringcomm::Communicator::all(2);
    ringResult_t code = ringSuccess;
    std::thread waiting([&] { code = wait_for_ever(comms[0]); });
    // Until the call is on its way: its flight record then has a first operation.
    while (comms[0].dump().find("AllReduce") == std::string::npos)
        std::this_thread::yield();
    comms[0].abort();
    waiting.join();
    if (code != ringAborted || comms[0])
        return 1;
    // The other rank was told.
    comms[1].abort();
    std::cout << "a call that waited was aborted through the C++ wrapper\n";
    return 0;
}
