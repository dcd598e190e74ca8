// The loader: every kind of bad plug-in gives a clear error when it was configured and a reasoned skip when
// it was found by a scan.
#include "runtime/plugin.hpp"

#include <filesystem>

#include "runtime/error.hpp"
#include "runtime/support.hpp"

namespace {

namespace fs = std::filesystem;

std::string built(const std::string& name) { return std::string(PLUGIN_FOLDER) + "/lib" + name + ".so"; }

std::string failure_of(const std::string& path) {
  try {
    isthmus::load_plugin(path);
  } catch (const isthmus::error& failure) {
    EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_CONFIG);
    EXPECT_STRNE(failure.info().hint, "");
    EXPECT_NE(std::string(failure.what()).find(path), std::string::npos) << failure.what();
    return failure.what();
  }
  return "loaded";
}

struct bad_plugin {
  const char* name;
  const char* reason;
};

const bad_plugin bad_plugins[] = {
    {"plugin_no_symbol", "does not export isthmus_backend_v1"},
    {"plugin_null", "returned NULL"},
    {"plugin_magic", "no Isthmus backend"},
    {"plugin_older", "built for backend ABI 0, older than this library's 1"},
    {"plugin_newer", "built for backend ABI 2, newer than this library's 1"},
    {"plugin_short", "its isthmus_backend has 16 bytes"},
    {"plugin_name", "its name \"Bad Name\" does not match"},
    {"plugin_no_name", "its name \"\" does not match"},
    {"plugin_platforms", "platform mask 0x80000000"},
    {"plugin_no_platform", "platform mask 0x0"},
    {"plugin_no_enqueue", "must not be NULL"},
    {"plugin_half_group", "group_start and group_end"},
};

TEST(plugin, every_bad_one_says_why) {
  for (const auto& [name, reason] : bad_plugins) {
    SCOPED_TRACE(name);
    EXPECT_NE(failure_of(built(name)).find(reason), std::string::npos) << failure_of(built(name));
  }
}

TEST(plugin, missing_file_and_no_library) {
  EXPECT_NE(failure_of("/nowhere/libmissing.so").find("does not exist"), std::string::npos);
  const test::scoped_file text("this is no library", ".so");
  EXPECT_NE(failure_of(text.path()), "loaded");
}

TEST(plugin, a_good_one_is_loaded_once) {
  const isthmus_backend* first = isthmus::load_plugin(mock::path());
  EXPECT_STREQ(first->name, "mock");
  EXPECT_EQ(isthmus::load_plugin(mock::path()), first);
}

TEST(plugin, configured_under_another_name) {
  try {
    isthmus::find_backends({{"other", mock::path()}});
    FAIL();
  } catch (const isthmus::error& failure) {
    EXPECT_NE(std::string(failure.what()).find("holds the backend \"mock\", not \"other\""), std::string::npos);
  }
}

TEST(plugin, a_name_that_is_taken) {
  try {
    isthmus::find_backends({{"host", built("plugin_clash")}});
    FAIL();
  } catch (const isthmus::error& failure) {
    EXPECT_NE(std::string(failure.what()).find("\"host\" is already taken by built-in"), std::string::npos)
        << failure.what();
  }
}

TEST(plugin, a_bad_one_that_was_configured_fails_the_communicator) {
  test::ranks ranks(2, "[plugins]\nbroken = \"" + built("plugin_magic") + "\"\n");
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_CONFIG);
  EXPECT_NE(ranks.message().find("no Isthmus backend"), std::string::npos) << ranks.message();
}

class scan : public testing::Test {
 protected:
  void SetUp() override {
    m_folder = fs::temp_directory_path() / ("isthmus-scan-" + std::to_string(getpid()));
    fs::create_directory(m_folder);
    setenv("ISTHMUS_PLUGIN_PATH", ("/nowhere:" + m_folder.string()).c_str(), 1);
  }
  void TearDown() override {
    unsetenv("ISTHMUS_PLUGIN_PATH");
    fs::remove_all(m_folder);
  }
  void add(const std::string& path) { fs::create_symlink(path, m_folder / fs::path(path).filename()); }
  static const isthmus::backend_entry* find(const std::vector<isthmus::backend_entry>& all,
                                            const std::string& source) {
    for (const auto& entry : all)
      if (fs::path(entry.source).filename() == fs::path(source).filename()) return &entry;
    return nullptr;
  }

  fs::path m_folder;
};

TEST_F(scan, bad_ones_are_skipped_with_their_reason) {
  for (const auto& bad : bad_plugins) add(built(bad.name));
  add(built("plugin_clash"));
  add(mock::path());
  std::ofstream(m_folder / "notes.txt") << "not a plug-in";
  const auto all = isthmus::find_backends({});
  for (const auto& [name, reason] : bad_plugins) {
    const auto* entry = find(all, built(name));
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(entry->backend, nullptr);
    EXPECT_NE(entry->reason.find(reason), std::string::npos) << entry->reason;
  }
  const auto* clash = find(all, built("plugin_clash"));
  ASSERT_NE(clash, nullptr);
  EXPECT_NE(clash->reason.find("already taken by built-in"), std::string::npos) << clash->reason;
  const auto* good = find(all, mock::path());
  ASSERT_NE(good, nullptr);
  EXPECT_EQ(good->name, "mock");
  EXPECT_NE(good->backend, nullptr);
  EXPECT_EQ(find(all, "notes.txt"), nullptr);
}

TEST_F(scan, skips_stand_in_info_and_change_nothing_else) {
  add(built("plugin_older"));
  test::ranks ranks(2, test::host_config);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  std::string info(1 << 16, '\0');
  ASSERT_EQ(isthmus_communicator_info(ranks[0], info.data(), info.size(), nullptr), ISTHMUS_SUCCESS);
  EXPECT_NE(info.find("older than this library's 1"), std::string::npos);
}

}  // namespace
