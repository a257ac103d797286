"""Registries by name: modules, files, entry points, and what is said where something is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog, Effect
from plansmith.contract.errors import CatalogError, InputError
from plansmith.serving.workers.base import CallInfo
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.loading import compare_catalogs, load_registry
from plansmith.serving.workers.registry import Registry

MODULE = '''
from plansmith.contract.importers.functions import worker_from_function
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.registry import Registry


@worker(effect="read")
def shop_price(item: str) -> int:
    """Price of an item."""
    return len(item)


@worker
def shop_order(item: str) -> str:
    """Order an item."""
    return item


def plain(item: str) -> str:
    return item


def needs(item):
    return [item]


def make():
    return [shop_price, shop_order]


def broken():
    raise RuntimeError("no database")


async def later():
    return []


class Box:
    workers = [shop_order]


everything = [shop_price, shop_order]
shop = Registry("the shop", everything)
entry = worker_from_function(plain)
mixed = [shop_price, plain]
nothing = []
number = 3
twice = (shop_price, shop_price)
catalog = shop.catalog
kinds = {"a": shop_price}
odd = worker(name="x" * 200)(plain)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module with a name of its own for each test, importable."""
    name = f"shop_{abs(hash(request.node.name)) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize(
    ("attribute", "names"),
    [
        ("shop_price", ("shop_price",)),
        ("everything", ("shop_price", "shop_order")),
        ("make", ("shop_price", "shop_order")),
        ("Box.workers", ("shop_order",)),
    ],
)
def test_an_attribute_gives_its_workers_under_the_modules_name(
    module: str, attribute: str, names: tuple[str, ...]
) -> None:
    registry = load_registry(f"{module}:{attribute}")
    assert (registry.name, registry.catalog.names) == (module, names)


def test_a_registry_keeps_its_name_unless_another_is_given(module: str) -> None:
    assert load_registry(f"{module}:shop").name == "the shop"
    assert load_registry(f"{module}:shop", name="mine").catalog.name == "mine"


def test_a_file_is_a_module_and_its_workers_can_be_called(module: str, tmp_path: Path) -> None:
    registry = load_registry(f"{tmp_path / module}.py:shop")
    found = registry.get("shop_price")
    assert found is not None
    assert asyncio.run(found.call({"item": "pen"}, CallInfo("r", 0))) == 3


def test_several_names_are_joined_in_their_order_under_the_first_name(module: str) -> None:
    registry = load_registry([f"{module}:shop_order", f"{module}:shop_price"])
    assert (registry.name, registry.catalog.names) == (module, ("shop_order", "shop_price"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{module}:shop_prise", "closest: 'shop_price'"),
        ("{module}:zzz", "it has "),
        ("{module}:Box.worker", "closest: 'workers'"),
        ("{module}:plain", "plain function 'plain'. Decorate it with @worker"),
        ("{module}:needs", "plain function 'needs'"),
        ("{module}:entry", "catalog entry of 'plain' without code"),
        ("{module}:catalog", "is a catalog, which has no code"),
        ("{module}:mixed", "entry 1 of .* is the plain function 'plain'"),
        ("{module}:nothing", "it is empty"),
        ("{module}:number", "found 3"),
        ("{module}:kinds", "no worker, list of workers or registry"),
        ("{module}:Box", "no worker, list of workers or registry"),
        ("{module}:twice", "two workers are named 'shop_price'"),
        ("{module}:broken", "raised RuntimeError: no database"),
        ("{module}:later", "is async"),
        ("{module}:odd", "bad name"),
        ("no_such_module_xyz:a", "cannot be imported: ModuleNotFoundError"),
        ("no/such/file.py:a", "does not exist"),
        ("no/such/file.py", "names no attribute"),
        ("no_such_distribution_xyz", "is no installed distribution.*For a module write"),
        ("pytest", "has no entry point in the group 'plansmith.workers'"),
        ("a b:c d", "names no attribute"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(module: str, spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_registry(spec.format(module=module))


def test_a_file_with_an_error_in_it_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("raise SystemExit(3)", encoding="utf-8")
    with pytest.raises(InputError, match="SystemExit: 3"):
        load_registry(f"{path}:a")


def test_no_name_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="no workers are named"):
        load_registry([])


def install(folder: Path, distribution: str, points: dict[str, str]) -> None:
    """What an installer leaves behind: a distribution's metadata."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
    lines = ["[plansmith.workers]", *[f"{name} = {value}" for name, value in points.items()]]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_entry_points_give_their_workers_all_or_by_distribution(module: str, tmp_path: Path) -> None:
    install(tmp_path, "acme-shop", {"b": f"{module}:shop_price"})
    install(tmp_path, "beta", {"a": f"{module}:shop_order"})
    everything = load_registry("entry-points")
    assert everything.catalog.names == ("shop_price", "shop_order")
    own = load_registry("Acme_Shop")
    assert (own.name, own.catalog.names) == ("acme-shop", ("shop_price",))


def test_an_entry_point_that_cannot_be_loaded_names_itself_and_its_distribution(module: str, tmp_path: Path) -> None:
    install(tmp_path, "acme-shop", {"b": f"{module}:not_there"})
    with pytest.raises(InputError, match=r"entry point 'b' of 'acme-shop'.*not_there"):
        load_registry("acme-shop")


def test_without_any_entry_point_the_group_is_named() -> None:
    with pytest.raises(InputError, match=r"'plansmith\.workers'"):
        load_registry("entry-points")


def shop(*, days: int = 1) -> Registry:
    def price(item: str) -> int:
        """Price."""
        return 1

    def order(item: str) -> str:
        """Order."""
        return item

    def cancel(item: str) -> str:
        """Cancel."""
        return item

    return Registry("shop", [worker(timeout_s=days)(price), worker(order), worker(cancel)])


def test_the_same_workers_have_the_same_hash_and_no_difference(tmp_path: Path) -> None:
    shop().catalog.save(tmp_path / "shop.json")
    found = compare_catalogs(shop(), tmp_path / "shop.json")
    assert (found.equal, found.lines()) == (True, [])


def test_differences_are_named_worker_by_worker(tmp_path: Path) -> None:
    catalog = shop().catalog
    price, order, cancel = catalog.workers
    other = Catalog("store", [order.model_copy(update={"effect": Effect.READ, "description": "x"}), price])
    found = compare_catalogs(catalog, other)
    assert (found.equal, found.missing, found.superfluous) == (False, (), ("cancel",))
    assert found.changed == {"order": ("description", "effect")}
    assert found.lines() == [
        "worker 'order' is another one than in the catalog: description, effect differ",
        "worker 'cancel' is superfluous: the catalog does not have it",
        "the catalog is named 'store', the workers' one 'shop'",
        "the workers stand in another order",
    ]
    back = compare_catalogs(Registry("store", [one for one in shop() if one.worker.name == "price"]), other)
    assert back.missing == ("order",)
    assert cancel.name not in back.lines()[0]


@pytest.mark.parametrize(
    "change", [{"description": "y"}, {"timeout_s": 5.0}, {"idempotent": True}, {"permission": "p"}]
)
def test_no_change_of_an_entry_goes_unnoticed(change: dict[str, Any]) -> None:
    catalog = shop().catalog
    changed = Catalog("shop", [catalog.workers[0].model_copy(update=change), *catalog.workers[1:]])
    found = compare_catalogs(catalog, changed)
    assert (found.equal, found.changed) == (False, {"price": tuple(change)})


def test_a_catalog_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        compare_catalogs(shop(), tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CatalogError):
        compare_catalogs(shop(), tmp_path / "bad.json")
