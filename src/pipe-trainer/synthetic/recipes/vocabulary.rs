//! The words of recipes: ingredients, and what is done with them.

pub const INGREDIENTS: [&str; 48] = [
    "carrot",
    "onion",
    "garlic",
    "potato",
    "tomato",
    "celery",
    "leek",
    "spinach",
    "broccoli",
    "cabbage",
    "pepper",
    "mushroom",
    "beans",
    "lentils",
    "rice",
    "pasta",
    "flour",
    "sugar",
    "salt",
    "butter",
    "olive oil",
    "cream",
    "milk",
    "cheese",
    "yogurt",
    "egg",
    "chicken",
    "beef",
    "pork",
    "salmon",
    "shrimp",
    "tofu",
    "lemon",
    "lime",
    "apple",
    "orange",
    "banana",
    "honey",
    "ginger",
    "basil",
    "thyme",
    "parsley",
    "mint",
    "cinnamon",
    "cumin",
    "vinegar",
    "soy sauce",
    "coconut milk",
];

const VERBS: [&str; 16] = [
    "chop", "slice", "dice", "mince", "peel", "fry", "boil", "steam", "roast", "grill", "simmer", "whisk", "fold",
    "stir", "season", "rest",
];

const MINUTES: [u32; 9] = [2, 3, 5, 8, 10, 15, 20, 30, 45];

/// Strides that share no factor with the lists, so that neighbours get different verbs and times.
pub fn direction(ingredient: usize) -> String {
    let verb = VERBS[ingredient * 7 % VERBS.len()];
    let minutes = MINUTES[ingredient * 4 % MINUTES.len()];
    format!("{verb} the {} for {minutes} minutes.", INGREDIENTS[ingredient])
}

/// Every word that a recipe can have.
pub fn words() -> Vec<String> {
    let ingredients = INGREDIENTS.iter().flat_map(|name| name.split(' ')).map(str::to_owned);
    let verbs = VERBS.iter().map(|verb| (*verb).to_owned());
    let minutes = MINUTES.iter().map(u32::to_string);
    let others = ["the", "for", "minutes"].map(str::to_owned);
    let mut words: Vec<String> = ingredients.chain(verbs).chain(minutes).chain(others).collect();
    words.sort_unstable();
    words.dedup();
    words
}
