// A rank that connects through a unique id: worker --rank R --size N --id FILE
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "faults/worker.hpp"
#include "topology/rank_arguments.hpp"

int main(int argc, char** argv) {
  try {
    const auto arguments = topology::parse_rank_arguments(argc, argv);
    if (!arguments) throw std::runtime_error("--rank, --size and --id are required");
    const faults::trial spec = faults::trial_of_environment();
    const isthmus_unique_id id =
        topology::share_unique_id(arguments->rank, arguments->id_file, std::getenv("FAULT_ADDRESS"));
    return faults::run_rank(
        spec, arguments->rank, arguments->size,
        [&](const isthmus_communicator_options& options, isthmus_communicator* communicator) {
          return isthmus_communicator_create(&id, arguments->rank, arguments->size, &options, communicator);
        });
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "worker: %s\n", failure.what());
    return 2;
  }
}
