// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/rbd.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>

#include "bridge/backend/file_engine.hpp"
#include "bridge/backend/identity.hpp"
#include "bridge/backend/rbd_module.hpp"
#include "bridge/backend/specification.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

namespace {

// ---- The module ---------------------------------------------------------------------------------

/// Beside the program, as in a build tree, or where it is installed. Never unloaded: librbd's
/// threads may outlive what they worked for.
tl::expected<const RbdModule*, Failure> load_rbd_module() {
  std::error_code ignored;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::string trouble;
  for (const auto& folder : {beside, std::filesystem::path{RNBDKIT_MODULE_DIR}}) {
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
  return tl::unexpected(
      Failure{ELIBACC, "the module for Ceph is not to be had (" + trouble +
                           "); build rnbdkit where librbd-dev is, with RNBDKIT_RBD=ON"});
}

// ---- What people type ---------------------------------------------------------------------------

struct RbdName {
  std::string pool, space, image, snapshot, conf, id;
};

constexpr char kForm[] = "write rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][,conf=FILE][,id=USER]";

bool parse_rbd_option(std::string_view item, RbdName& name) {
  std::string_view value = item;
  if (strip_prefix(value, "conf=")) {
    name.conf = value;
  } else if (strip_prefix(value, "id=")) {
    name.id = value;
  } else {
    return false;
  }
  return !value.empty();
}

bool parse_rbd_path(std::string_view path, RbdName& name) {
  const auto first = path.find('/');
  const auto last = path.rfind('/');
  if (first == std::string_view::npos) return false;
  name.pool = path.substr(0, first);
  if (last != first) name.space = path.substr(first + 1, last - first - 1);
  std::string_view image = path.substr(last + 1);
  const auto at = image.find('@');
  if (at != std::string_view::npos) name.snapshot = image.substr(at + 1);
  name.image = image.substr(0, at);
  const bool empty_part = (last != first && name.space.empty()) ||
                          (at != std::string_view::npos && name.snapshot.empty());
  return !name.pool.empty() && !name.image.empty() && !empty_part &&
         name.space.find('/') == std::string::npos;
}

bool parse_rbd(std::string_view text, RbdName& name) {
  std::string_view path = text.substr(0, text.find(','));
  text.remove_prefix(path.size());
  while (!text.empty()) {
    text.remove_prefix(1);
    const std::string_view item = text.substr(0, text.find(','));
    if (!parse_rbd_option(item, name)) return false;
    text.remove_prefix(item.size());
  }
  return parse_rbd_path(path, name);
}

// ---- The image ----------------------------------------------------------------------------------

/// An open image, shared by the queues of all reactors.
struct RbdShared {
  ~RbdShared() {
    if (image != nullptr) module->close(image);
  }
  void note_size() {
    const std::uint64_t now = module->size(image);
    std::uint64_t known = size;
    while (now > known && !size.compare_exchange_weak(known, now)) {
    }
  }

  std::string name;
  const RbdModule* module = nullptr;
  RbdImage* image = nullptr;
  BackendInfo info;
  rtrs::Log log;
  std::atomic<std::uint64_t> size{0};  ///< bytes; grows only
  std::atomic<bool> fenced{false};     ///< the cluster takes no change from this server any more
};

class RbdQueue;

/// A request at work.
struct RbdIo : RbdOperation {
  RbdQueue* queue = nullptr;
  BackendRequest* request = nullptr;
  RbdIo* next_done = nullptr;
  std::int64_t result = 0;
  bool flushing = false;  ///< the write is done, and is to be durable
};
static_assert(sizeof(RbdIo) <= sizeof(BackendRequest::scratch));

/// Collects the extents of a request on a thread of the pool.
struct RbdMap : FileOperation {
  RbdQueue* queue = nullptr;
  BackendRequest* request = nullptr;
  std::uint64_t told = 0;  ///< bytes
};
static_assert(sizeof(RbdMap) <= sizeof(BackendRequest::scratch));

/// Gives back what librbd's threads have completed, in one turn of the reactor for all of it.
class RbdQueue final : public BackendQueue {
 public:
  RbdQueue(std::shared_ptr<RbdShared> shared, rtrs::Reactor& reactor)
      : shared_{std::move(shared)}, reactor_{reactor}, threads_{make_thread_engine(reactor)} {}

  void submit(BackendRequest& request) override;
  bool broken() const override { return shared_->fenced; }

 private:
  std::uint64_t inside(const BackendRequest& request) const {
    const std::uint64_t size = shared_->size.load(std::memory_order_relaxed);
    return request.offset >= size ? 0 : std::min(request.length, size - request.offset);
  }
  int answer_at_once(const BackendRequest& request) const;
  void start(BackendRequest& request, RbdOperation::Kind kind);
  void map(BackendRequest& request);
  static std::int64_t look(FileOperation& operation);
  static int on_extent(std::uint64_t offset, std::size_t length, int exists, void* context);
  static bool append(RbdMap& map, std::uint64_t length, bool hole);
  static void on_mapped(FileOperation& operation, std::int64_t result);
  static void on_completed(RbdOperation& operation, std::int64_t result);
  void give_back();
  void finish(RbdIo& io);
  int error_of(std::int64_t result);

  std::shared_ptr<RbdShared> shared_;
  rtrs::Reactor& reactor_;
  std::unique_ptr<FileEngine> threads_;
  std::atomic<RbdIo*> done_{nullptr};
};

int RbdQueue::answer_at_once(const BackendRequest& request) const {
  if (shared_->fenced) return EIO;
  const bool change = request.operation == BackendOperation::write ||
                      request.operation == BackendOperation::discard ||
                      request.operation == BackendOperation::write_zeroes;
  if (change && shared_->info.read_only) return EROFS;
  if (request.operation == BackendOperation::cache) return 0;
  if (request.operation == BackendOperation::write_zeroes && request.fast && request.no_unmap) {
    return EOPNOTSUPP;
  }
  return change && inside(request) == 0 ? 0 : -1;
}

void RbdQueue::submit(BackendRequest& request) {
  using Kind = RbdOperation::Kind;
  const int early = answer_at_once(request);
  if (early >= 0) return request.done(request, early);
  switch (request.operation) {
    case BackendOperation::read: {
      const std::uint64_t length = inside(request);
      std::memset(request.data + length, 0, request.length - length);
      return length == 0 ? request.done(request, 0) : start(request, Kind::read);
    }
    case BackendOperation::write:
      return start(request, Kind::write);
    case BackendOperation::flush:
      return start(request, Kind::flush);
    case BackendOperation::discard:
      return start(request, Kind::discard);
    case BackendOperation::write_zeroes:
      return start(request, request.no_unmap ? Kind::write_thick_zeroes : Kind::write_zeroes);
    case BackendOperation::extents:
      return map(request);
    case BackendOperation::cache:
      break;
  }
  request.done(request, 0);
}

void RbdQueue::start(BackendRequest& request, RbdOperation::Kind kind) {
  auto& io = *new (request.scratch) RbdIo;
  io.kind = kind;
  io.offset = request.offset;
  io.length = inside(request);
  io.data = request.data;
  io.completed = on_completed;
  io.queue = this;
  io.request = &request;
  shared_->module->start(shared_->image, io);
}

/// On a thread of librbd's. The one that finds the list empty has the reactor look.
void RbdQueue::on_completed(RbdOperation& operation, std::int64_t result) {
  auto& io = static_cast<RbdIo&>(operation);
  RbdQueue& queue = *io.queue;
  auto& reactor = queue.reactor_.io();
  io.result = result;
  RbdIo* head = queue.done_.load(std::memory_order_relaxed);
  do {
    io.next_done = head;
  } while (!queue.done_.compare_exchange_weak(head, &io, std::memory_order_release,
                                              std::memory_order_relaxed));
  if (head == nullptr) boost::asio::post(reactor, [&queue] { queue.give_back(); });
}

void RbdQueue::give_back() {
  RbdIo* newest = done_.exchange(nullptr, std::memory_order_acquire);
  RbdIo* oldest = nullptr;
  while (newest != nullptr) {
    RbdIo* const next = newest->next_done;
    newest->next_done = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    RbdIo& io = *oldest;
    oldest = io.next_done;
    finish(io);
  }
}

void RbdQueue::finish(RbdIo& io) {
  if (io.result >= 0 && io.request->fua && !io.flushing) {
    io.flushing = true;
    io.kind = RbdOperation::Kind::flush;
    return shared_->module->start(shared_->image, io);
  }
  BackendRequest& request = *io.request;
  request.done(request, error_of(io.result));
}

/// An end of the image that has come nearer is no reason to speak of arguments.
int RbdQueue::error_of(std::int64_t result) {
  if (result >= 0) return 0;
  if (result == -ESHUTDOWN && !shared_->fenced.exchange(true) && shared_->log) {
    shared_->log(rtrs::LogLevel::error,
                 shared_->name +
                     ": the cluster has fenced this server off, because another one has taken the "
                     "image's lock; every request fails until the export is opened anew");
  }
  return result == -ESHUTDOWN || result == -EINVAL ? EIO : static_cast<int>(-result);
}

// ---- Holes --------------------------------------------------------------------------------------

void RbdQueue::map(BackendRequest& request) {
  auto& map = *new (request.scratch) RbdMap;
  map.kind = FileOperation::Kind::call;
  map.call = look;
  map.done = on_mapped;
  map.queue = this;
  map.request = &request;
  threads_->start(map);
}

std::int64_t RbdQueue::look(FileOperation& operation) {
  auto& map = static_cast<RbdMap&>(operation);
  RbdShared& shared = *map.queue->shared_;
  const std::uint64_t length = map.queue->inside(*map.request);
  const int error = length == 0 ? 0
                                : shared.module->extents(shared.image, map.request->offset, length,
                                                         on_extent, &map);
  if (error < 0 && error != -ECANCELED) return error;
  if (error == 0) append(map, map.request->length - map.told, /*hole=*/true);
  return 0;
}

/// The gap between two runs is a hole.
int RbdQueue::on_extent(std::uint64_t offset, std::size_t length, int exists, void* context) {
  auto& map = *static_cast<RbdMap*>(context);
  const std::uint64_t begin = std::max(offset, map.request->offset) - map.request->offset;
  const std::uint64_t end =
      std::min<std::uint64_t>(offset + length - map.request->offset, map.request->length);
  if (begin > map.told && !append(map, begin - map.told, /*hole=*/true)) return -ECANCELED;
  if (end <= map.told) return 0;
  return append(map, end - map.told, exists == 0) ? 0 : -ECANCELED;
}

/// False: there is no room for another one.
bool RbdQueue::append(RbdMap& map, std::uint64_t length, bool hole) {
  auto& extents = *map.request->extents;
  if (length == 0) return true;
  if (map.told > 0 && extents.back().hole == hole) {
    extents.back().length += length;
  } else if (map.flags >= 0 && static_cast<std::size_t>(map.flags) < map.request->max_extents) {
    ++map.flags;
    extents.push_back({length, hole, hole});
  } else {
    return false;
  }
  map.told += length;
  return true;
}

void RbdQueue::on_mapped(FileOperation& operation, std::int64_t result) {
  auto& map = static_cast<RbdMap&>(operation);
  BackendRequest& request = *map.request;
  request.done(request, map.queue->error_of(result));
}

class RbdBackend final : public Backend {
 public:
  explicit RbdBackend(std::shared_ptr<RbdShared> shared) : shared_{std::move(shared)} {}

  const BackendInfo& info() const override { return shared_->info; }
  std::uint64_t present_size() override {
    shared_->note_size();
    return shared_->size;
  }
  Whereabouts whereabouts() const override {
    return shared_->fenced ? Whereabouts::gone : Whereabouts::named;
  }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    return std::make_unique<RbdQueue>(shared_, *reactor);
  }

 private:
  std::shared_ptr<RbdShared> shared_;
};

// ---- Opening ------------------------------------------------------------------------------------

std::string advice_for_rbd(int error, const char* step) {
  const std::string begin = std::string{step} + " failed: " + std::strerror(error) + "; ";
  switch (error) {
    case EBUSY:
      return begin +
             "another client has it open for writing; stop that one, or export it read-only";
    case EOPNOTSUPP:
      return begin +
             "the image has no exclusive lock, which is the fence against another writer; "
             "give it one (rbd feature enable IMAGE exclusive-lock), or export it read-only";
    case ENOENT:
      return begin + "look at 'rbd ls POOL' and 'rbd snap ls IMAGE', and at conf= and id=";
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
  RbdName name;
  if (!parse_rbd(rest, name)) return bad_specification(EINVAL, text, kForm);
  if (!name.snapshot.empty() && !options.read_only && !options.read_only_fallback) {
    return bad_specification(EROFS, text, "a snapshot is read-only; export it read-only (,ro)");
  }
  const auto module = load_rbd_module();
  if (!module) return bad_specification(module.error().error, text, module.error().text);
  const bool read_only = options.read_only || !name.snapshot.empty();
  auto shared = std::make_shared<RbdShared>();
  shared->name = text;
  shared->module = *module;
  shared->log = options.log;
  const RbdTarget target{name.conf.c_str(),  name.id.c_str(),    name.pool.c_str(),
                         name.space.c_str(), name.image.c_str(), name.snapshot.c_str(),
                         read_only};
  RbdFacts facts;
  const char* step = "";
  const int error = (*module)->open(target, &shared->image, facts, &step);
  if (error < 0) return bad_specification(-error, text, advice_for_rbd(-error, step));
  describe_rbd(*shared, facts, read_only);
  if (shared->log) shared->log(rtrs::LogLevel::debug, text + ": known as: " + facts.identity);
  return std::make_unique<RbdBackend>(std::move(shared));
}

}  // namespace rnbd
