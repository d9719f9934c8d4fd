// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/rbd.hpp"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "bridge/backend/identity.hpp"
#include "bridge/backend/rbd_module.hpp"
#include "bridge/backend/rbd_name.hpp"
#include "bridge/backend/rbd_queue.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

// ---- The module ---------------------------------------------------------------------------------

/// Loads the module from the folder of the program, as in a build tree, or from its installed
/// place. It is never unloaded, because librbd's threads may outlive the last image.
tl::expected<const RbdModule*, Failure> load_rbd_module() {
  std::error_code ignored;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::string trouble;
  for (const auto& folder : {beside, beside / ".." / RNBDKIT_MODULE_DIR}) {
    void* const library = dlopen((folder / kRbdModuleFile).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      trouble = dlerror();
      continue;
    }
    using Entry = const RbdModule* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, kRbdModuleEntry));
    if (entry != nullptr && entry()->version == kRbdModuleVersion) return entry();
    trouble = (folder / kRbdModuleFile).string() + " is of another version";
  }
  return tl::unexpected(Failure{
      ELIBACC,
      "the module for Ceph is not to be had (" + trouble +
          "); install the package rnbd-server-rbd, or build rnbdkit where librbd-dev is, with "
          "RNBDKIT_RBD=ON"});
}

/// In the image's metadata.
class RbdNotes final : public BackendNotes {
 public:
  explicit RbdNotes(std::shared_ptr<RbdShared> shared) : shared_{std::move(shared)} {}

  tl::expected<std::string, std::string> load(const std::string& name) override {
    std::string text(kRoom, '\0');
    std::size_t size = text.size();
    const int error = shared_->module->load_note(shared_->image, name.c_str(), text.data(), &size);
    if (error == -ENOENT) return "";
    if (error < 0) return failure("read", name, error);
    text.resize(std::strlen(text.c_str()));
    return text;
  }
  tl::expected<void, std::string> save(const std::string& name, const std::string& text) override {
    if (text.size() >= kRoom) return failure("write", name, -E2BIG);
    const int error = shared_->module->save_note(shared_->image, name.c_str(), text.c_str());
    if (error < 0) return failure("write", name, error);
    return {};
  }

 private:
  static constexpr std::size_t kRoom = 65'536;  ///< bytes, with the zero behind it

  tl::unexpected<std::string> failure(const char* what, const std::string& name, int error) const {
    return tl::unexpected(shared_->name + ": cannot " + what + " its metadata " + name + ": " +
                          std::strerror(-error));
  }

  std::shared_ptr<RbdShared> shared_;
};

class RbdBackend final : public Backend {
 public:
  explicit RbdBackend(std::shared_ptr<RbdShared> shared)
      : shared_{std::move(shared)}, notes_{std::make_shared<RbdNotes>(shared_)} {}

  const BackendInfo& info() const override { return shared_->info; }
  std::uint64_t present_size() override {
    shared_->note_size();
    shared_->is_fenced();  // reports it even when there are no requests
    return shared_->size;
  }
  std::optional<std::uint64_t> shrunk_to() const override {
    const std::uint64_t now = shared_->module->size(shared_->image);
    return now < shared_->size ? std::optional{now} : std::nullopt;
  }
  Whereabouts whereabouts() const override {
    return shared_->is_fenced() ? Whereabouts::gone : Whereabouts::named;
  }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    return open_rbd_queue(shared_, *reactor);
  }
  std::shared_ptr<BackendNotes> notes() override { return notes_; }

 private:
  std::shared_ptr<RbdShared> shared_;
  std::shared_ptr<RbdNotes> notes_;
};

constexpr char kForm[] = "write rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][,conf=FILE][,id=USER]";

// ---- Opening ------------------------------------------------------------------------------------

std::string advice_for_rbd(int error, std::string_view step, const std::string& id) {
  const std::string begin = std::string{step} + " failed: " + std::strerror(error) + "; ";
  if (step == kRbdConfigurationStep) {
    return begin +
           "name an existing file with conf=, or write /etc/ceph/ceph.conf; the user that " +
           "this program runs as must be able to read it";
  }
  const bool lacks_key = error == ENOENT || error == EACCES || error == EPERM;
  if (step == kRbdConnectStep && lacks_key) {
    const std::string user = "client." + (id.empty() ? "admin" : id);
    return begin + "this program needs the key that the cluster has for " + user +
           ", in a file that it may read: ceph auth get " + user + " -o /etc/ceph/ceph." + user +
           ".keyring, or where keyring= in the configuration says";
  }
  const bool forbids = error == EPERM && step == kRbdSettingsStep;
  if (forbids) {
    return begin +
           "rbd_cache and rbd_plugins would keep answered writes in this server only, and without "
           "rbd_blocklist_on_break_lock there is no fence; look at 'rbd config image list IMAGE', "
           "and remove what was set there (rbd config image remove, rbd config pool remove)";
  }
  switch (error) {
    case EBUSY:
      return begin +
             "another client has it open for writing; stop that one, or export it read-only";
    case EOPNOTSUPP:
      return begin +
             "the image has no exclusive lock, which is the fence against another writer; "
             "give it one (rbd feature enable IMAGE exclusive-lock), or export it read-only";
    case ENOENT:
      return begin + "look at 'rbd ls POOL' and 'rbd snap ls IMAGE', with the same conf= and id=";
    case EACCES:
    case EPERM:
      return begin + "the user (id=) may not; give it the cap 'profile rbd' for the pool";
    default:
      return begin + "see that the cluster answers ('ceph -s' with the same conf= and id=)";
  }
}

void describe_rbd(RbdShared& shared, const RbdFacts& facts, bool read_only) {
  BackendInfo& info = shared.info;
  info.size = facts.size;
  info.read_only = read_only;
  info.can_discard = info.can_write_zeroes = info.can_fast_zero = !read_only;
  info.can_extents = true;
  info.can_fua = true;
  info.discard_granularity = info.can_discard ? 64 * 1024 : 0;  // rbd_discard_granularity_bytes
  info.uuid = uuid_of(facts.identity);
  shared.size = facts.size;
}

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_rbd(const std::string& rest,
                                                         const BackendOptions& options) {
  const std::string text = "rbd:" + rest;
  const auto name = parse_rbd_name(rest);
  if (!name) return bad_specification(EINVAL, text, kForm);
  if (!name->snapshot.empty() && !options.read_only && !options.read_only_fallback) {
    return bad_specification(EROFS, text, "a snapshot is read-only; export it read-only (,ro)");
  }
  const auto module = load_rbd_module();
  if (!module) return bad_specification(module.error().error, text, module.error().text);
  const bool read_only = options.read_only || !name->snapshot.empty();
  auto shared = std::make_shared<RbdShared>();
  shared->name = text;
  shared->module = *module;
  shared->log = options.log;
  const RbdTarget target{
      name->conf.c_str(),  name->id.c_str(),       name->pool.c_str(), name->space.c_str(),
      name->image.c_str(), name->snapshot.c_str(), read_only};
  RbdFacts facts;
  const char* step = "";
  int error = -(*module)->open(target, &shared->image, facts, &step);
  if (error == EINVAL) error = EIO;  // the cluster's, which may get better; the name is right
  if (error > 0) return bad_specification(error, text, advice_for_rbd(error, step, name->id));
  describe_rbd(*shared, facts, read_only);
  if (shared->log) shared->log(rtrs::LogLevel::debug, text + ": known as: " + facts.identity);
  return std::make_unique<RbdBackend>(std::move(shared));
}

}  // namespace rnbd
