// Which engine libisthmus_ggml.so takes: that of the SYCL runtime on which ggml's own backend runs, though the
// process has others; none for a runtime that it does not know.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "frontends/ggml/standin/engine.hpp"
#include "frontends/ggml/standin/ggml.hpp"

namespace {

// The stand-in for ggml-sycl on libsycl.so.N, which loads that.
void (*record_on(int runtime))(void*) {
  const std::string file = "libstandin_ggml_sycl" + std::to_string(runtime) + ".so";
  void* library = dlopen((STANDIN_FOLDER "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<void (*)(void*)>(dlsym(library, "standin_record"));
}

// The log of the engine that was loaded from beside libisthmus_ggml.so; NULL where it was not.
standin_engine_log* engine_of(int runtime) {
  const std::string file = "libisthmus_ggml_sycl" + std::to_string(runtime) + ".so";
  void* library = dlopen((STANDIN_FOLDER "/" + file).c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<standin_engine_log* (*)()>(dlsym(library, "standin_engine_opened"))();
}

// Sums once over two queues of `runtime`; what was said to stderr.
std::string sum_on(int runtime) {
  int queues[2];
  const auto record = record_on(runtime);
  EXPECT_NE(record, nullptr) << dlerror();
  if (record == nullptr) return "";
  testing::internal::CaptureStderr();
  const auto backends = standin::make_sycl_backends({&queues[0], &queues[1]}, record, true);
  const auto trio = standin::look_up(standin::registry_of(backends[0]));
  auto temporary = backends;
  void* comm = trio.init(temporary.data(), temporary.size());
  EXPECT_NE(comm, nullptr);
  float data[4]{};
  ggml_tensor* tensors[2];
  for (auto*& each : tensors) each = standin::make_tensor(standin::type::f32, data, 4, true);
  EXPECT_TRUE(comm != nullptr && trio.allreduce(comm, tensors));
  if (comm != nullptr) trio.free(comm);
  return testing::internal::GetCapturedStderr();
}

TEST(ggml_runtime, the_engine_is_that_of_the_runtime_that_ggml_runs_on) {
  ASSERT_NE(record_on(12), nullptr);  // of somebody else in this process
  for (const int runtime : {11, 12}) {
    const int before = standin::recorded().allreduce;
    const std::string said = sum_on(runtime);
    EXPECT_NE(said.find("Isthmus sums over"), std::string::npos) << said;
    EXPECT_EQ(standin::recorded().allreduce, before) << "ggml's own took part";
    ASSERT_NE(engine_of(runtime), nullptr);
    EXPECT_EQ(engine_of(runtime)->calls, 1);
  }
}

TEST(ggml_runtime, one_that_is_not_known_is_left_to_ggmls_own_allreduce) {
  const int before = standin::recorded().allreduce;
  const std::string said = sum_on(13);
  EXPECT_NE(said.find("libsycl.so.13"), std::string::npos) << said;
  EXPECT_NE(said.find("there are engines for libsycl.so.11, libsycl.so.12; ggml's own"), std::string::npos)
      << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(standin::recorded().allreduce, before + 1);
}

}  // namespace
