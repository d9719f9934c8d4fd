// SPDX-License-Identifier: BSD-3-Clause
#include "tests/unit/server/fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

// The transport's half of a request, which the session logic calls.
void rtrs::ServerRequest::finish(int error_number) {
  auto& call = *reinterpret_cast<rnbd::test::Call*>(this);
  call.error = error_number;
  ++call.finished;
  if (call.on_finish) call.on_finish();
}

namespace rnbd::test {
namespace {

class FakeQueue final : public BackendQueue {
 public:
  explicit FakeQueue(FakeBackend& backend) : backend_{backend} { ++backend_.queues; }
  ~FakeQueue() override { --backend_.queues; }
  void submit(BackendRequest& request) override {
    backend_.records.push_back({request.operation, request.offset, request.length, request.fua,
                                request.no_unmap, request.fast});
    if (backend_.hold) {
      backend_.held.push_back(&request);
    } else {
      backend_.run(request);
    }
  }

 private:
  FakeBackend& backend_;
};

}  // namespace

std::unique_ptr<BackendQueue> FakeBackend::open_queue(rtrs::Reactor*) {
  if (fail_queue) return nullptr;
  return std::make_unique<FakeQueue>(*this);
}

void FakeBackend::answer(int error) {
  REQUIRE(!held.empty());
  BackendRequest& request = *held.front();
  held.pop_front();
  fail_next = error;
  run(request);
}

void FakeBackend::run(BackendRequest& request) {
  if (const int error = std::exchange(fail_next, 0)) return request.done(request, error);
  std::byte* place = bytes.data() + request.offset;
  switch (request.operation) {
    case BackendOperation::read:
      std::memcpy(request.data, place, request.length);
      break;
    case BackendOperation::write:
      std::memcpy(place, request.data, request.length);
      break;
    case BackendOperation::discard:
    case BackendOperation::write_zeroes:
      std::memset(place, 0, request.length);
      break;
    case BackendOperation::extents:
      request.extents->insert(request.extents->end(), extents.begin(), extents.end());
      break;
    default:
      break;
  }
  request.done(request, 0);
}

std::vector<std::byte> room(std::size_t size) { return std::vector<std::byte>(size, kGarbage); }

World::World() : World(Options{}) {}

World::World(const Options& options)
    : catalogue{{.open = [this](const std::string&, const BackendOptions& how)
                     -> tl::expected<std::unique_ptr<Backend>, Failure> {
        next_backend->info_.read_only |= how.read_only;
        return std::unique_ptr<Backend>{std::exchange(next_backend, nullptr)};
      }}},
      queues{nullptr, catalogue, services} {
  services.on_line = [this](const std::string& line) { log.push_back(line); };
  disk_ = &add("disk", options.size, false, options.adjust);
  session_ = make_session("client", options.extensions);
}

FakeBackend& World::add(const std::string& name, std::uint64_t size, bool read_only,
                        const std::function<void(BackendInfo&)>& adjust) {
  auto* backend = new FakeBackend{size};  // the catalogue takes it over
  if (adjust) adjust(backend->info_);
  next_backend = backend;
  ExportSpecification specification;
  specification.name = name;
  specification.storage = "fake:" + name;
  specification.description = "the " + name;
  specification.read_only = read_only;
  const auto added = catalogue.add(specification);
  REQUIRE_MESSAGE(added.has_value(), (added ? "" : added.error().text));
  return *backend;
}

void World::give_to(const std::string& user, const std::string& name) {
  ExportSpecification specification;
  specification.name = name;
  specification.rights.rw = {user};
  CatalogueChange wanted;
  wanted.update = {std::move(specification)};
  REQUIRE(catalogue.change(std::move(wanted), false).empty());
}

std::unique_ptr<BlockSession> World::make_session(const std::string& name, bool extensions,
                                                  DeviceIds ids) {
  SessionFacts facts;
  facts.name = name;
  facts.peer = "127.0.0.1:40000";
  facts.extensions = facts.claims = extensions;
  facts.ids = ids;
  facts.queue_depth = 4;
  facts.max_io_size = 65536;
  return std::make_unique<BlockSession>(facts, catalogue, queues, services);
}

Call& World::send_bytes(BlockSession& target, std::vector<std::byte> message, bool is_read,
                        std::vector<std::byte> data) {
  Call& call = *calls_.emplace_back(std::make_unique<Call>());
  call.message = std::move(message);
  call.data = std::move(data);
  call.request.message = call.message;
  call.request.data = call.data;
  call.request.is_read = is_read;
  target.on_request(call.request);
  return call;
}

Call& World::open(BlockSession& target, const std::string& name, wire::AccessMode mode) {
  return send(target, wire::encode_open(name, mode), true, room(sizeof(wire::OpenResponse)));
}

Call& World::close(BlockSession& target, std::uint32_t id) {
  wire::Close message;
  message.header = wire::header_of(wire::MessageType::close);
  message.device_id = id;
  return send(target, message, false, {});
}

Call& World::io(BlockSession& target, std::uint32_t rw, std::uint64_t sector, std::uint32_t length,
                bool is_read, std::size_t size, std::uint32_t id) {
  wire::Io message;
  message.header = wire::header_of(wire::MessageType::io);
  message.device_id = id;
  message.sector = sector;
  message.rw = rw;
  message.length = length;
  return send(target, message, is_read, room(size));
}

}  // namespace rnbd::test
