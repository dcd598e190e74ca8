// The order in which a library is searched.
#include "base/dynamic_library.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace isthmus {
namespace {

namespace fs = std::filesystem;

constexpr const char* variable = "ISTHMUS_TEST_LIBRARY";

class library_search : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "isthmus-search-XXXXXX").string();
    m_folder = fs::canonical(mkdtemp(pattern.data()));
    m_request.variable = variable;
    m_request.names = {"libnew.so.2", "libold.so.1"};
    m_request.wheel_folders = {"vendor/lib"};
    unsetenv(variable);
    unsetenv("VIRTUAL_ENV");
    setenv("PATH", "/nonexistent", 1);
  }
  void TearDown() override {
    setenv("PATH", m_path.c_str(), 1);
    unsetenv("VIRTUAL_ENV");
    unsetenv(variable);
    fs::remove_all(m_folder);
  }

  std::string add_file(const std::string& name) const {
    const fs::path file = m_folder / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "code";
    return file;
  }

  std::string m_path = std::getenv("PATH");
  fs::path m_folder;
  library_search_request m_request;
};

using path_list = std::vector<std::string>;

TEST_F(library_search, configured_path_is_the_only_one) {
  setenv(variable, "/opt/other.so", 1);
  m_request.option = "/opt/own.so";
  EXPECT_EQ(candidate_paths(m_request), path_list{"/opt/own.so"});
  m_request.option = nullptr;
  EXPECT_EQ(candidate_paths(m_request), path_list{"/opt/other.so"});
  setenv(variable, "", 1);
  EXPECT_EQ(candidate_paths(m_request), m_request.names) << "an empty variable is ignored";
}

TEST_F(library_search, wheels_come_before_the_system) {
  const std::string configured = add_file("configured/vendor/lib/libold.so.1"),
                    environment = add_file("environment/lib/python3.12/site-packages/vendor/lib/libnew.so.2"),
                    lib64 = add_file("environment/lib64/python3.9/site-packages/vendor/lib/libold.so.1"),
                    on_path = add_file("on_path/lib/python3.11/site-packages/vendor/lib/libnew.so.2"),
                    system = add_file("system/libold.so.1");
  add_file("environment/lib/python2.7/site-packages/vendor/lib/libnew.so.2");
  add_file("on_path/bin/python3");
  add_file("later/bin/python3");
  add_file("later/lib/python3.11/site-packages/vendor/lib/libnew.so.2");
  fs::create_directories(m_folder / "environment/lib/a");  // no folder of Python
  const std::string site_packages = m_folder / "configured";
  m_request.site_packages = site_packages.c_str();
  m_request.system_folders = {m_folder / "absent", m_folder / "system"};
  setenv("VIRTUAL_ENV", (m_folder / "environment").c_str(), 1);
  const std::string path = "relative/bin:" + (m_folder / "empty/bin").string() + ":" +
                           (m_folder / "on_path/bin").string() + ":" + (m_folder / "later/bin").string();
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(candidate_paths(m_request),
            (path_list{configured, environment, lib64, on_path, "libnew.so.2", "libold.so.1", system}));
}

TEST_F(library_search, relative_environment_is_ignored) {
  add_file("environment/lib/python3.12/site-packages/vendor/lib/libnew.so.2");
  const fs::path working_directory = fs::current_path();
  fs::current_path(m_folder);
  setenv("VIRTUAL_ENV", "environment", 1);
  EXPECT_EQ(candidate_paths(m_request), m_request.names);
  fs::current_path(working_directory);
}

TEST_F(library_search, path_is_that_of_the_loaded_file) {
  std::string reason = "none";
  m_request.names = {"libisthmus_absent.so", "libm.so.6"};
  const dynamic_library library = dynamic_library::open(m_request, reason);
  ASSERT_TRUE(library) << reason;
  EXPECT_EQ(reason, "");
  EXPECT_TRUE(library.path().starts_with("/")) << library.path();
  EXPECT_TRUE(library.path().ends_with("/libm.so.6")) << library.path();
  EXPECT_NE(library.symbol("cos"), nullptr);
  EXPECT_TRUE(dynamic_library::find_loaded("libm.so.6"));
  EXPECT_FALSE(dynamic_library::find_loaded("libisthmus_absent.so"));
}

TEST_F(library_search, failure_lists_all_attempts) {
  std::string reason;
  m_request.system_folders = {m_folder};
  const std::string file = add_file("libold.so.1");
  EXPECT_FALSE(dynamic_library::open(m_request, reason));
  EXPECT_TRUE(reason.starts_with("tried libnew.so.2 (")) << reason;
  EXPECT_NE(reason.find(" libold.so.1 ("), std::string::npos) << reason;
  EXPECT_NE(reason.find(" " + file + " ("), std::string::npos) << reason;
}

int native_function() { return 7; }

TEST(symbol_loader, reports_the_first_missing_required_function) {
  using function = int (*)();
  const dynamic_library library = dynamic_library::find_loaded("libc.so.6");
  ASSERT_TRUE(library);
  symbol_loader loader(library, "get");
  function required = native_function, optional = native_function;
  loader.load_required(required, "pid");
  EXPECT_NE(required, nullptr);
  loader.load_optional(optional, "absent_function");
  EXPECT_EQ(optional, nullptr);
  loader.load_required(required, "none");  // the library is not expected to have it
  EXPECT_EQ(required, nullptr);
  EXPECT_EQ(loader.first_missing(), "");
  loader.load_required(required, "first");
  loader.load_required(required, "second");
  EXPECT_EQ(loader.first_missing(), "getfirst");
}

}  // namespace
}  // namespace isthmus
