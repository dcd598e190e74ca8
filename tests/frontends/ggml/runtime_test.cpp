// Checks that libisthmus_ggml.so uses the engine of the SYCL runtime that ggml's backend runs on, even if the
// process has others, and no engine for an unknown runtime.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "frontends/ggml/standin/engine.hpp"
#include "frontends/ggml/standin/ggml.hpp"

namespace {

// Loads the stand-in for ggml-sycl on libsycl.so.N, which loads that runtime. Returns its recording function.
void (*record_on(int runtime))(void*) {
  const std::string file = "libstandin_ggml_sycl" + std::to_string(runtime) + ".so";
  void* library = dlopen((STANDIN_FOLDER "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<void (*)(void*)>(dlsym(library, "standin_record"));
}

// The log of the engine that was loaded from the folder of libisthmus_ggml.so; NULL if it was not loaded.
standin_engine_log* engine_of(int runtime) {
  const std::string file = "libisthmus_ggml_sycl" + std::to_string(runtime) + ".so";
  void* library = dlopen((STANDIN_FOLDER "/" + file).c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<standin_engine_log* (*)()>(dlsym(library, "standin_engine_opened"))();
}

// Sums once over two queues of `runtime`. Returns the output to stderr.
std::string sum_on(int runtime) {
  int queues[2];
  const auto record = record_on(runtime);
  EXPECT_NE(record, nullptr) << dlerror();
  if (record == nullptr) return "";
  testing::internal::CaptureStderr();
  const auto backends = standin::make_sycl_backends({&queues[0], &queues[1]}, record, true);
  const auto functions = standin::look_up(standin::registry_of(backends[0]));
  auto temporary = backends;
  void* comm = functions.init(temporary.data(), temporary.size());
  EXPECT_NE(comm, nullptr);
  float data[4]{};
  ggml_tensor* tensors[2];
  for (auto*& each : tensors) each = standin::make_tensor(standin::type::f32, data, 4, true);
  EXPECT_TRUE(comm != nullptr && functions.allreduce(comm, tensors));
  if (comm != nullptr) functions.free(comm);
  return testing::internal::GetCapturedStderr();
}

TEST(ggml_runtime, engine_matches_the_runtime_of_ggml) {
  ASSERT_NE(record_on(12), nullptr);  // used by another component of this process
  for (const int runtime : {11, 12}) {
    const int before = standin::recorded().allreduce;
    const std::string log_text = sum_on(runtime);
    EXPECT_NE(log_text.find("Isthmus sums over"), std::string::npos) << log_text;
    EXPECT_EQ(standin::recorded().allreduce, before) << "ggml's own allreduce was used";
    ASSERT_NE(engine_of(runtime), nullptr);
    EXPECT_EQ(engine_of(runtime)->calls, 1);
  }
}

TEST(ggml_runtime, unknown_runtime_uses_native_allreduce) {
  const int before = standin::recorded().allreduce;
  const std::string log_text = sum_on(13);
  EXPECT_NE(log_text.find("libsycl.so.13"), std::string::npos) << log_text;
  EXPECT_NE(log_text.find("available engines: libsycl.so.11, libsycl.so.12; ggml's own"), std::string::npos)
      << log_text;
  EXPECT_EQ(std::count(log_text.begin(), log_text.end(), '\n'), 1) << log_text;
  EXPECT_EQ(standin::recorded().allreduce, before + 1);
}

}  // namespace
