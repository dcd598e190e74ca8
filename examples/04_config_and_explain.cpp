// 04: a configuration file selects backends by size, explain() reports the selection and its reason, and an
// invalid call throws a detailed error.
//
//   mpiexec -n 2 04_config_and_explain
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <isthmus/sycl/mpi.hpp>
#include <nlohmann/json.hpp>
#include <string>

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int wrong = 0;
  {
    // Every rank must read the same rules: different rules are rejected when the communicator is created.
    const std::string file = "/tmp/isthmus-example-" + std::to_string(getpid()) + ".toml";
    std::ofstream(file) << "[[rule]]\n"
                           "collective = \"allreduce\"\n"
                           "bytes = \"..64K\"\n"
                           "use = \"mpi\"\n";

    const sycl::device device{sycl::default_selector_v};
    sycl::queue queue{device, sycl::property::queue::in_order{}};
    const isthmus::communicator ranks = isthmus::make_communicator(MPI_COMM_WORLD, device, {.config = file});
    std::remove(file.c_str());

    const auto backend_of = [&](std::uint64_t count) {
      const auto explanation = nlohmann::json::parse(ranks.explain(ISTHMUS_ALLREDUCE, count));
      const nlohmann::json& selection = explanation["selection"];
      if (ranks.rank() == 0) {
        std::printf("%llu floats: %s (%s)\n", static_cast<unsigned long long>(count),
                    selection["backend"].get<std::string>().c_str(),
                    selection["reason"].get<std::string>().c_str());
      }
      return selection["backend"].get<std::string>();
    };
    wrong += backend_of(1000) != "mpi";
    wrong += backend_of(1000000) == "mpi";

    try {
      sycl::buffer<float, 1> too_small{sycl::range<1>(10)};
      ranks.allreduce(queue, too_small, 11);
      ++wrong;
    } catch (const isthmus::exception& failure) {
      if (ranks.rank() == 0) std::printf("rejected: %s\n", failure.what());
    }
  }
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
