// The plug-in loader: a defective plug-in causes an error if it is configured, and is skipped with a reason if
// a scan finds it.
#include "core/plugin.hpp"

#include <isthmus/tools.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <isthmus/plugin.hpp>
#include <stdexcept>

#include "base/error.hpp"
#include "core/support.hpp"

namespace {

namespace fs = std::filesystem;

std::string plugin_path(const std::string& name) { return std::string(PLUGIN_FOLDER) + "/lib" + name + ".so"; }

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
  std::string reason;
};

const std::string abi = std::to_string(ISTHMUS_BACKEND_ABI);
const std::string is_older = "older than this library's " + abi;

const bad_plugin bad_plugins[] = {
    {"plugin_no_symbol", "does not export isthmus_backend_v1"},
    {"plugin_null", "gave NULL"},
    {"plugin_magic", "no Isthmus backend"},
    {"plugin_older", "built for backend ABI " + std::to_string(ISTHMUS_BACKEND_ABI - 1) + ", " + is_older},
    {"plugin_newer",
     "built for backend ABI " + std::to_string(ISTHMUS_BACKEND_ABI + 1) + ", newer than this library's " + abi},
    {"plugin_short", "its isthmus_backend has 16 bytes, but backend ABI " + abi + " of this library has "},
    {"plugin_long", " bytes, but backend ABI " + abi + " of this library has "},
    {"plugin_name", "its name \"Bad Name\" does not match"},
    {"plugin_no_name", "its name \"\" does not match"},
    {"plugin_platforms", "platform mask 0x80000000"},
    {"plugin_no_platform", "platform mask 0x0"},
    {"plugin_no_enqueue", "must not be NULL"},
    {"plugin_half_group", "group_start and group_end"},
};

TEST(plugin, defective_plugins_report_the_reason) {
  for (const auto& [name, reason] : bad_plugins) {
    SCOPED_TRACE(name);
    EXPECT_NE(failure_of(plugin_path(name)).find(reason), std::string::npos) << failure_of(plugin_path(name));
  }
}

TEST(plugin, missing_file_and_text_file_are_rejected) {
  EXPECT_NE(failure_of("/nowhere/libmissing.so").find("does not exist"), std::string::npos);
  const test::scoped_file text("this is not a library", ".so");
  EXPECT_NE(failure_of(text.path()), "loaded");
}

TEST(plugin, valid_plugin_is_loaded_once) {
  const isthmus_backend* first = isthmus::load_plugin(standin::path());
  EXPECT_STREQ(first->name, "standin");
  EXPECT_EQ(isthmus::load_plugin(standin::path()), first);
}

// The struct ends at the end of mapped memory.
TEST(plugin, bytes_beyond_struct_bytes_are_not_read) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + page, page, PROT_NONE), 0);
  for (const std::size_t bytes : {offsetof(isthmus_backend, name), sizeof(isthmus_backend) - sizeof(void*)}) {
    auto* const plugin = reinterpret_cast<isthmus_backend*>(static_cast<char*>(pages) + page - bytes);
    std::memcpy(static_cast<void*>(plugin), isthmus::load_plugin(standin::path()), bytes);
    plugin->struct_bytes = bytes;
    EXPECT_THROW(isthmus::check_backend(plugin), std::invalid_argument);
  }
  munmap(pages, 2 * page);
}

std::vector<int> reported_ranks;

isthmus_status fail_with_ranks(void*, const int* ranks, std::size_t n, isthmus_status status, std::int64_t,
                               const char*, const char*, const char*, ...) {
  reported_ranks = {ranks, ranks + n};
  return status;
}

TEST(plugin, fail_with_ranks_reports_all_ranks) {
  isthmus_backend_context context{};
  context.fail_with_ranks = fail_with_ranks;
  EXPECT_EQ(isthmus::fail_with_ranks(context, {1, 4}, ISTHMUS_ERROR_TIMEOUT, 0, "here", nullptr, "text"),
            ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(reported_ranks, (std::vector{1, 4}));
}

TEST(plugin, configured_name_must_match) {
  try {
    isthmus::load_backends({{"other", standin::path()}});
    FAIL();
  } catch (const isthmus::error& failure) {
    EXPECT_NE(std::string(failure.what()).find("holds the backend \"standin\", not \"other\""),
              std::string::npos);
  }
}

TEST(plugin, duplicate_name_is_rejected) {
  try {
    isthmus::load_backends({{"shm", plugin_path("plugin_clash")}});
    FAIL();
  } catch (const isthmus::error& failure) {
    EXPECT_NE(std::string(failure.what()).find("\"shm\" is already taken by built-in"), std::string::npos)
        << failure.what();
  }
}

TEST(plugin, configured_defect_fails_the_communicator) {
  test::ranks ranks(2, "[plugins]\nbroken = \"" + plugin_path("plugin_magic") + "\"\n");
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_CONFIG);
  EXPECT_NE(ranks.message().find("no Isthmus backend"), std::string::npos) << ranks.message();
}

// A valid plug-in that another user could have changed, or that is found through the working directory.
TEST(plugin, files_writable_by_others_are_rejected) {
  const test::scoped_file copy("", ".so");
  fs::copy_file(standin::path(), copy.path(), fs::copy_options::overwrite_existing);
  fs::permissions(copy.path(), fs::perms(0666));
  const std::string refusal = failure_of(copy.path());
  EXPECT_NE(refusal.find("has owner " + std::to_string(geteuid())), std::string::npos) << refusal;
  EXPECT_NE(refusal.find(
                "mode 0666: code is loaded only from files and folders that only the user and root can write"),
            std::string::npos)
      << refusal;
  EXPECT_NE(
      failure_of(fs::relative(plugin_path("plugin_magic"))).find("never loaded through the working directory"),
      std::string::npos);
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

TEST_F(scan, skips_defective_plugins_with_a_reason) {
  for (const auto& bad : bad_plugins) add(plugin_path(bad.name));
  add(plugin_path("plugin_clash"));
  add(standin::path());
  std::ofstream(m_folder / "notes.txt") << "not a plug-in";
  const auto all = isthmus::load_backends({});
  for (const auto& [name, reason] : bad_plugins) {
    const auto* entry = find(all, plugin_path(name));
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(entry->backend, nullptr);
    EXPECT_NE(entry->reason.find(reason), std::string::npos) << entry->reason;
  }
  const auto* clash = find(all, plugin_path("plugin_clash"));
  ASSERT_NE(clash, nullptr);
  EXPECT_NE(clash->reason.find("already taken by built-in"), std::string::npos) << clash->reason;
  const auto* valid_plugin = find(all, standin::path());
  ASSERT_NE(valid_plugin, nullptr);
  EXPECT_EQ(valid_plugin->name, "standin");
  EXPECT_NE(valid_plugin->backend, nullptr);
  EXPECT_EQ(find(all, "notes.txt"), nullptr);
}

TEST_F(scan, skips_files_writable_by_others) {
  const fs::path copy = m_folder / "libopen.so";
  fs::copy_file(standin::path(), copy);
  fs::permissions(copy, fs::perms(0666));
  auto all = isthmus::load_backends({});
  const auto* entry = find(all, copy);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->backend, nullptr);
  EXPECT_NE(entry->reason.find("mode 0666"), std::string::npos) << entry->reason;
  fs::permissions(copy, fs::perms(0755));
  setenv("ISTHMUS_PLUGIN_PATH", fs::relative(m_folder).c_str(), 1);
  all = isthmus::load_backends({});
  entry = find(all, copy);
  ASSERT_NE(entry, nullptr);
  EXPECT_NE(entry->reason.find("never loaded through the working directory"), std::string::npos)
      << entry->reason;
}

// Run by folder_next_to_the_library_is_scanned in a copy of this program.
TEST(scan_probe, DISABLED_standin_is_found) {
  const auto all = isthmus::load_backends({});
  EXPECT_TRUE(std::ranges::any_of(all, [](const auto& entry) { return entry.name == "standin"; }));
}

// The core is part of this program, so the folder is the one next to the program.
TEST_F(scan, folder_next_to_the_library_is_scanned) {
  fs::copy_file("/proc/self/exe", m_folder / "program");
  unsetenv("ISTHMUS_PLUGIN_PATH");
  const auto finds_standin = [&] {
    const std::string command = (m_folder / "program").string() +
                                " --gtest_filter=scan_probe.* --gtest_also_run_disabled_tests >/dev/null 2>&1";
    return std::system(command.c_str()) == 0;
  };
  EXPECT_FALSE(finds_standin());
  fs::create_directory(m_folder / "isthmus");
  fs::copy_file(standin::path(), m_folder / "isthmus/libisthmus_standin.so");
  EXPECT_TRUE(finds_standin());
}

TEST_F(scan, unreadable_folders_are_skipped_with_a_reason) {
  setenv("ISTHMUS_PLUGIN_PATH", ("/nowhere:" + m_folder.string() + ":elsewhere").c_str(), 1);
  const auto all = isthmus::load_backends({});
  const auto* entry = find(all, "ISTHMUS_PLUGIN_PATH");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->backend, nullptr);
  EXPECT_EQ(entry->reason,
            "ISTHMUS_PLUGIN_PATH: cannot read the folder /nowhere: No such file or directory; cannot read the "
            "folder elsewhere: No such file or directory (use an absolute path)");
}

TEST_F(scan, rule_for_a_skipped_plugin_fails_with_the_reason) {
  add(plugin_path("plugin_older"));
  setenv("ISTHMUS_RULE", "use=plugin_older", 1);
  test::ranks ranks(2, test::host_config);
  unsetenv("ISTHMUS_RULE");
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_CONFIG);
  EXPECT_NE(ranks.message().find(is_older), std::string::npos) << ranks.message();
  EXPECT_NE(ranks.message().find("cannot read the folder /nowhere"), std::string::npos) << ranks.message();
}

TEST_F(scan, lists_skipped_plugins_in_info) {
  add(plugin_path("plugin_older"));
  test::ranks ranks(2, test::host_config);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  std::string info(1 << 16, '\0');
  ASSERT_EQ(isthmus_communicator_info(ranks[0], info.data(), info.size(), nullptr), ISTHMUS_SUCCESS);
  EXPECT_NE(info.find(is_older), std::string::npos);
}

}  // namespace
